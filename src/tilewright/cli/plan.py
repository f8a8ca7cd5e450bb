"""`tilewright plan VERB ...`: what a job would take. The command line is the job's own, with plan before it."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, BadParameter, Option

from tilewright.cli import generate
from tilewright.cli._options import parse_bytes, verb
from tilewright.cli._output import say, show, show_json
from tilewright.formats.sampling_fields import DRAWING

if TYPE_CHECKING:
    from tilewright.bench.rates import Job, Scaling
    from tilewright.runtime.plan import Declared, JobPlan

JOBS = ("generate", "classify", "draw", "convolve")
PROMPTS = Option("--input", "-i", metavar="FILE", help="Prompts; without: as many as --count says.")
COMPLETIONS = Option("--output", "-o", metavar="FILE", help="Completions; without: JSON lines, in this directory.")
GPU_MEMORY = Option("--gpu-memory", metavar="SIZE", help="Of the GPU, as in 141G; this machine's, if it has one.")
CONTEXT = {"allow_interspersed_args": False}  # what follows the verb belongs to the verb


@dataclass
class Options:
    """One field an option."""

    command: Annotated[list[str], Argument(metavar="VERB ...", help=f"The job: {', '.join(JOBS)}, with its options.")]


@dataclass(kw_only=True)
class GenerateOptions(generate.Options):
    """Options of `generate`; -i and -o may be left out, and some are for a plan alone."""

    input: Annotated[str | None, PROMPTS] = None  # type: ignore[assignment]
    output: Annotated[str | None, COMPLETIONS] = None  # type: ignore[assignment]
    length: Annotated[int, Option(min=1, help="Tokens of a prompt where no --input is given.")] = 16
    gpu_memory: Annotated[str | None, GPU_MEMORY] = None


def options_of(job: str) -> type:
    """The options of a job's plan: the job's own, and the memory of a GPU."""
    if job == "generate":
        return GenerateOptions
    own = import_module(f"tilewright.cli.{job}").Options
    memory = "gpu_memory", Annotated[str | None, GPU_MEMORY], field(default=None)
    return make_dataclass("PlanOptions", [memory], bases=(own,), kw_only=True)


@verb(Options)
def plan(options: Options) -> None:
    """Print what a job would need: records, shards, memory and disk, and which shards are already there.

    \b
    tilewright plan classify --model critic -i reviews.txt -o labels.jsonl

    Write plan before the job's own command line. A job that would be refused at its start is refused here, with the
    same exit code. Nothing is written, and no weights are loaded. Of a long text, a sample is read; figures that come
    from it say "about". Of a volume, and of noise above 16 MiB, only the header is read.
    """
    job, *given = options.command
    if job not in JOBS:
        raise BadParameter(f"{job!r} is no job; {', '.join(JOBS)} are", param_hint="VERB")
    from tilewright.cli import HELP, Verb, _app, _guarded
    from tilewright.hardware import gpus
    from tilewright.runtime.devices import gpu_elsewhere

    module = import_module(f"tilewright.cli.{job}")

    @verb(options_of(job))
    def planned(options: Any) -> None:
        memory = _gpu_memory(options)
        with gpu_elsewhere(memory is not None and not gpus()):
            text, figures = _planned(job, module, options, memory)
        if job == "generate" and (unused := generate.options_without_effect(options)):
            say(unused, err=True)
        if options.json:
            show_json(figures)
        else:
            show(text)

    planned.__name__, planned.__doc__ = job, f"What `tilewright {job}` would take with these options."
    app = _app()
    app.command(job, cls=Verb, context_settings=HELP)(_guarded(planned))
    app(args=given, prog_name=f"tilewright plan {job}")


def _planned(name: str, module: Any, options: Any, memory: int | None) -> tuple[str, dict[str, Any]]:
    """In words, and as figures. memory: of the GPU, where it is given."""
    from tilewright.hardware import available_memory, cpu
    from tilewright.runtime.devices import place_for

    found: Declared
    plans = import_module(f"tilewright.runtime.verbs.{name}.plan")
    made = name == "generate" and options.input is None
    if name == "generate":
        options.output = options.output or "out.jsonl"
    if made:
        from tilewright.runtime.verbs.generate.task import check_forced

        options.input = ""
        job = _job_of(module, options, memory)
        device = place_for(job.device, job.dtype)
        check_forced(job.params, job.settings.rungs, device)
        found = plans.plan_made(job, options.length, memory)
        head, disk = _made(found, options), []
        told = {"verb": "plan", "job": name, "model": job.model, "device": device, "dtype": job.dtype,
                "prompts": found.records, "peak_memory": found.peak_memory, "flops": found.flops,
                "memory": {part.name: part.bytes for part in found.parts}, **found.figures}  # fmt: skip
    else:
        whole: JobPlan = plans.plan(_job_of(module, options, memory), memory)
        head, disk, told, found = _head(whole), _disk(whole), whole.as_dict(), whole
    told |= {"without": sorted(set(options.without))} if options.without else {}
    threads = (options.threads or cpu().cores) if told["device"] == "cpu" else 0
    effort, figures = _effort(name, found, told, threads)
    told |= {"threads": threads, "available_memory": available_memory(), **figures}
    return "\n".join([*head, *_memory(found, told["device"], memory), *disk, *effort]), told


def _gpu_memory(options: Any) -> int | None:
    """The --gpu-memory in bytes; a job on "auto" then runs on that GPU."""
    memory = parse_bytes(options.gpu_memory, "--gpu-memory") if options.gpu_memory else None
    if options.device == "cpu" and memory is not None:
        raise BadParameter("is for a job on a GPU, and --device is cpu", param_hint="--gpu-memory")
    if options.device == "auto" and memory is not None:
        options.device = "cuda"
    return memory


def _job_of(module: Any, options: Any, memory: int | None) -> Any:
    """The job of a verb's module. Raises ResourceError for a job on a GPU if there is none and `memory` is None."""
    from tilewright.errors import ResourceError
    from tilewright.hardware import gpus

    job = module.job_of(options)
    if options.device == "cuda" and memory is None and not gpus():
        raise ResourceError("there is no GPU here whose memory could be read", remedy="give --gpu-memory, as in 80G")
    return job


def _head(found: JobPlan) -> list[str]:
    """Records and shards, and what the verb has to say."""
    figures, begun = found.figures, found.begun
    records = f"{'' if found.counted else 'about '}{found.records:,} {found.unit}"
    if found.verb == "convolve":
        tile, shape = (" x ".join(map(str, figures[name])) for name in ("tile", "shape"))
        records += f" of {shape}, {found.dtype}, in {figures['tiles']:,} tiles of {tile}"
    elif found.verb == "generate":
        tokens = f"{figures['prompt_tokens']:,} tokens, the longest {figures['longest']:,}"
        records += f", {tokens}; {figures['new_tokens']:,} new ones each"
    elif "batch" in figures:
        records += f", {figures['batch']:,} at a time"
    state = {"new": "", "finished": "; the job is finished, and nothing is to be done"}.get(
        begun.state, f"; {begun.done:,} of them are there ({begun.state})"
    )
    lines = [records, f"shards: {begun.cut.shards:,}, {_shard(found)}{state}"]
    lines += _noticed(found) if found.verb == "generate" else []
    if begun.thrown:
        lines.append(
            f"--restart throws away what was done before, {begun.thrown:,} shard{'s' * (begun.thrown > 1)}, "
            "when its own first one is there"
        )
    if begun.touched:
        lines.append(f"touched since the job was begun, so that their content is compared: {', '.join(begun.touched)}")
    if "token_table" in figures:
        lines.append(_table(figures))
    return lines


def _noticed(found: JobPlan) -> list[str]:
    """Prompts that get an error, fewer tokens than asked for, or have fields without effect."""
    figures, lines, about = found.figures, [], "" if found.counted else "about "
    if figures["bad"]:
        lines.append(f"bad prompts: {about}{figures['bad']:,}, each gets an error; the first: {figures['first_bad']}")
    if figures["cut"]:
        lines.append(f"prompts with less room in the model's context than new tokens: {about}{figures['cut']:,}")
    if figures["undrawn"]:
        names = f"{', '.join(DRAWING[:-1])} or {DRAWING[-1]}"
        lines.append(
            f"prompts at temperature 0 with {names}, which have no effect there: {about}{figures['undrawn']:,}"
        )
    return lines


def _shard(found: JobPlan) -> str:
    """How large one is, and what a kill costs."""
    cut: Any = found.begun.cut
    unit = "planes" if found.verb == "convolve" else found.unit
    per = getattr(cut, "per_shard", None)
    if per is None:
        size = "a row group of the input each" if cut.shards > 1 else "the whole input"
    elif hasattr(cut, "size"):
        each = -(-found.records // max(cut.shards, 1))
        size = f"of {min(per, cut.size):,} bytes, about {each:,} {unit}"
    else:
        size = f"of {min(per, cut.count):,} {unit}"
    return f"{size}; a stopped job loses at most one a worker ({found.processes:,})"


def _table(figures: dict[str, Any]) -> str:
    if not figures["token_table"]:
        return "token table: not used"
    return (
        f"token table: used, about {figures['table_rows']:,} rows, {_size(figures['table_bytes'])}; "
        f"at most {_size(figures['table_at_most'])}"
    )


def _memory(found: Declared, device: str, gpu_memory: int | None) -> list[str]:
    """One line per part, and the peak."""
    from tilewright.hardware import available_memory, gpus
    from tilewright.runtime.plan import JobPlan

    peak = found.peak_memory
    rows = {part.name: _mib(part.bytes) for part in found.parts if part.bytes}
    if device != "cpu":
        there = gpu_memory or gpus()[0].memory
        fits = "fits" if peak <= there else "does NOT fit: take a smaller batch, or another GPU"
        text = f"{_mib(peak)}   {peak:,} bytes; the GPU has {_size(there)}: it {fits}"
        return _rows(rows | {"expected peak, on the GPU": text})
    rows["expected peak"] = f"{_mib(peak)}   {peak:,} bytes; {available_memory() / 2**20:,.0f} MiB are free"
    if isinstance(found, JobPlan) and found.supervised:
        rows[f"{found.processes:,} workers and who hands out shards"] = _mib(found.total_memory or 0)
    return _rows(rows)


def _disk(found: JobPlan) -> list[str]:
    outputs = found.outputs
    if found.begun.state == "finished":
        return []
    about = "" if outputs.exact else "about "
    fits = "fits" if found.needed <= found.disk else "does NOT fit: free some space or write to another disk"
    return [
        f"output: {about}{_size(outputs.bytes)}; beside it OUT.job keeps {about}{_size(outputs.shards)}; "
        f"the disk has {_size(found.disk)}: it {fits}"
    ]


def _made(found: Declared, options: Any) -> list[str]:
    """Of prompts that no file holds."""
    figures = found.figures
    head = f"{found.records:,} prompts, {figures['prompt_tokens']:,} tokens, the longest {figures['longest']:,}"
    lines = [f"{head}; {options.max_tokens:,} new ones each"]
    if options.length + options.max_tokens > figures["context"]:
        context = f"these are more tokens than the model's context of {figures['context']:,}"
        lines.append(f"{context}: completions end there")
    return lines


def _effort(name: str, found: Declared, told: dict[str, Any], threads: int) -> tuple[list[str], dict[str, Any]]:
    """(lines, figures) of operations, time and workers."""
    from tilewright.bench.rates import Job, rate, saved_rows, scaling
    from tilewright.hardware import cpu
    from tilewright.runtime.plan import JobPlan
    from tilewright.runtime.start import visible_gpus

    job = Job(name, told["dtype"], threads, found.records, found.flops, found.figures)
    lines, figures = _work(found, told, threads) if name == "generate" else ([], {})
    without = told.get("without", [])
    rows = [] if without else saved_rows(job)
    most = found.figures.get("planes", found.records)
    if isinstance(found, JobPlan) and found.begun.done:  # its shards stay as they are; a new job has more if need be
        most = found.begun.cut.shards
    measured = rate(job, rows)
    units = cpu().cores if threads else max(1, len(visible_gpus()))
    paying = scaling(job, rows, most, units)
    workers = {"workers_that_pay": paying.workers, "workers_measured": paying.row is not None}
    if measured is None:
        return [*lines, _no_rate(job, without), _workers(job, paying, units)], figures | workers | {
            "expected_seconds": None
        }
    seconds, row = measured
    source = f"results/{row.machine}/{row.op}.csv: {row.rung}, {row.size}, {row.dtype}"
    source += f", {_threads(row.threads)}, " if row.threads else ", "
    lines.append(
        f"rate: about {found.records / seconds:,.1f} {found.unit}/s, {_duration(seconds)} by one worker, by "
        f"{source}{row.date}, scaled by operations; files are not in it"
    )
    told_rate = {"expected_seconds": seconds, "measured_in": source.rstrip(", ")}
    return [*lines, _workers(job, paying, units, seconds)], figures | workers | told_rate


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def _no_rate(job: Job, without: list[str]) -> str:
    from tilewright.bench.rates import WORKLOADS, measured_dtype, saving_command

    if not job.flops:
        return "rate: not known: no record that was read is good"
    if without:
        return f"rate: not known: saved rows are of jobs with every optimisation, this one has no {', '.join(without)}"
    command, where = saving_command(job), "of this GPU"
    if command is None:
        return f"rate: not known: `tilewright bench {job.verb}` measures float32 only"
    if job.threads:
        where = f"on {_threads(job.threads)} of this machine"
    row = f"{WORKLOADS[job.verb]} in {measured_dtype(job)} {where}"
    return f"rate: not known: ./results has no row of {row}; `{command}` saves one"


def _workers(job: Job, paying: Scaling, units: int, seconds: float | None = None) -> str:
    """How many workers pay, and by what. units: cores or GPUs here."""
    time = f", {_duration(seconds / paying.faster)}" if seconds is not None else ""
    head = f"workers that pay: {paying.workers:,}{time}"
    if paying.row is not None:
        return f"{head}; measured {paying.faster:.2f} times as fast as one ({paying.row.size}, {paying.row.date})"
    rule = f"with {_threads(job.threads)} each on {units} cores" if job.threads else "one per GPU"
    device = "" if job.threads else "--device cuda "
    return f"{head}; an estimate, {rule}: `tilewright bench scaling {device}--save` measures it"


def _work(found: Declared, told: dict[str, Any], threads: int) -> tuple[list[str], dict[str, Any]]:
    """Operations of a worker of `generate`, and the least time by this machine's roofs."""
    figures = found.figures
    work = f"work of a worker: {figures['worker_flops'] / 1e9:,.1f} GFLOP, {told['dtype']}"
    work += f"; {figures['at_once']:,} sequences at once"
    if not threads:
        return [f"{work}; {figures['bytes_moved'] / 1e9:,.1f} GB through the GPU's memory"], {"least_seconds": None}
    least_s = _least_seconds(figures, told["dtype"], threads)
    time = (
        f"at least {least_s:,.1f} s on {_threads(threads)}, by this machine's measured roofs"
        if least_s is not None
        else f"not known: roofs of this machine with {_threads(threads)} are not in ./results; "
        f"`tilewright ladder matmul --threads {threads} --save` measures them"
    )
    return [work, f"time: {time}"], {"least_seconds": least_s}


def _least_seconds(figures: dict[str, Any], dtype: str, threads: int) -> float | None:
    """By the roofs that were measured on this machine with as many threads; None if none were."""
    from pathlib import Path

    from tilewright.bench.results import read
    from tilewright.hardware import machine_name

    same = (machine_name(), dtype, threads)
    rows = [row for row in read(Path("results"), machine_name()) if (row.machine, row.dtype, row.threads) == same]
    gflops = max((row.roof_gflops or 0 for row in rows), default=0)
    gbytes = max((row.roof_gbytes_s or 0 for row in rows), default=0)
    if not gflops or not gbytes:
        return None
    return max(figures["worker_flops"] / gflops, figures["bytes_moved"] / gbytes) / 1e9


def _duration(seconds: float) -> str:
    """90.0 -> "1.5 min"."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.2g} s" if seconds < 10 else f"{seconds:,.0f} s"


def _mib(count: int) -> str:
    return f"{count / 2**20:>9,.0f} MiB"


def _size(count: int) -> str:
    """1234567 -> "1.2 MiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024  # type: ignore[assignment]
    return f"{count:,.0f} bytes" if unit == "bytes" else f"{count:,.1f} {unit}"


def _rows(rows: dict[str, str]) -> list[str]:
    return [f"  {name:<38}{text}" for name, text in rows.items()]
