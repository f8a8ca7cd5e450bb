"""`tilewright plan VERB ...`: what a job would take. The command line is the job's own, with plan before it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, make_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, BadParameter, Option

from tilewright.cli import generate
from tilewright.cli._options import parse_bytes, verb
from tilewright.cli._output import say, show, show_json
from tilewright.cli._plan_time import effort, trial_command
from tilewright.errors import counted
from tilewright.formats.sampling_fields import DRAWING

if TYPE_CHECKING:
    from tilewright.runtime.plan import Declared, JobPlan

JOBS = ("generate", "score", "classify", "embed", "draw", "convolve")
PROMPTS = Option(
    "--input",
    "-i",
    metavar="FILE",
    help="File of prompts. Without it, plan assumes --count prompts of --length tokens.",
)
COMPLETIONS = Option("--output", "-o", metavar="FILE", help="File of completions. Without it, plan assumes JSON lines.")
GPU_MEMORY = Option(
    "--gpu-memory",
    metavar="SIZE",
    help="Memory of the GPU, as in 141G, to plan for another machine. Default: the memory of this machine's GPU.",
)
CONTEXT = {"allow_interspersed_args": False}  # what follows the verb belongs to the verb


@dataclass
class Options:
    """One field per option."""

    command: Annotated[list[str], Argument(metavar="VERB ...", help=f"The job: {', '.join(JOBS)}, with its options.")]


@dataclass(kw_only=True)
class GenerateOptions(generate.Options):
    """Options of `generate`; -i and -o may be left out, and some are for a plan alone."""

    input: Annotated[str | None, PROMPTS] = None  # type: ignore[assignment]
    output: Annotated[str | None, COMPLETIONS] = None  # type: ignore[assignment]
    length: Annotated[int, Option(min=1, help="Tokens per prompt, if there is no --input.")] = 16
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
    """Print what a job would need: records, shards, memory, disk and time, and which shards are already there.

    \b
    tilewright plan classify --model critic -i reviews.txt -o labels.jsonl

    Write plan before the job's own command line. A job that would be refused at its start is refused here, with the
    same exit code. Nothing is written, and no weights are loaded. Only a sample of a long text is read; "about" marks
    figures that are estimated from the sample. Of a volume, or of noise above 16 MiB, only the header is read.

    The time is estimated from a similar job in the output's directory: one with the same model or kernel, device and
    precision. If the output is a URL, plan looks in the current directory. A job does not count if it took less than a
    second or has no good record. If there is none, the time is estimated from ./results, where `bench --save` stores
    measurements. Else plan prints the command of a short trial.
    """
    job, *given = options.command
    if job not in JOBS:
        raise BadParameter(f"{job!r} is no job; the jobs are {', '.join(JOBS)}", param_hint="VERB")
    from tilewright.cli import HELP, Verb, _app, _guarded
    from tilewright.hardware import gpus
    from tilewright.runtime.devices import gpu_elsewhere

    module = import_module(f"tilewright.cli.{job}")

    @verb(options_of(job))
    def planned(options: Any) -> None:
        memory = _gpu_memory(options)
        with gpu_elsewhere(memory is not None and not gpus()):
            text, figures = _planned(given, module, options, memory)
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


def _planned(given: list[str], module: Any, options: Any, memory: int | None) -> tuple[str, dict[str, Any]]:
    """In words, and as figures. given: the options as they were typed. memory: of the GPU, where it is given."""
    from tilewright.hardware import available_memory, cpu
    from tilewright.runtime.devices import place_for

    found: Declared
    name = module.__name__.rpartition(".")[2]
    plans = import_module(f"tilewright.runtime.verbs.{name}.plan")
    made = name == "generate" and options.input is None
    if name == "generate":
        options.output = options.output or "out.jsonl"
    if made:
        from tilewright.models.decoder_config import DecoderConfig
        from tilewright.runtime.load import config_of
        from tilewright.runtime.verbs.generate.task import check_forced

        options.input = ""
        job = _job_of(module, options, memory)
        device = place_for(job.device, job.dtype)
        check_forced(job.params, job.settings.rungs, device, config_of(job.model, DecoderConfig))
        found = plans.plan_made(job, options.length, memory)
        head, disk = _made(found, options), []
        told = {"verb": "plan", "job": name, "model": job.model, "device": device, "dtype": job.dtype,
                "prompts": found.records, "peak_memory": found.peak_memory, "flops": found.flops,
                "memory": {part.name: part.bytes for part in found.parts}, **found.figures}  # fmt: skip
    else:
        whole: JobPlan = plans.plan(_job_of(module, options, memory), memory)
        head, disk, told, found = _head(whole), _disk(whole, options.output), whole.as_dict(), whole
    told |= {"without": sorted(set(options.without))} if options.without else {}
    threads = (options.threads or cpu().cores) if told["device"] == "cpu" else 0
    trial = None if made else trial_command(name, given, options.output, found.records, getattr(found, "trial", None))
    lines, figures = effort(name, found, told, threads, options.output, trial)
    told |= {"threads": threads, "available_memory": available_memory(), **figures}
    return "\n".join([*head, *_memory(found, told["device"], memory), *disk, *lines]), told


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
    elif found.verb == "score":
        records += f", {figures['tokens_read']:,} tokens, {figures['tokens_scored']:,} of them scored"
        records += f"; about {figures['bad']:,} bad texts" if figures["bad"] else ""
    elif "batch" in figures:
        records += f", {figures['batch']:,} at a time"
    state = {"new": "", "finished": "; the job is finished, nothing to do"}.get(
        begun.state, f"; {begun.done:,} of them are finished (the job is {begun.state})"
    )
    lines = [records, f"shards: {begun.cut.shards:,}, {_shard(found)}{state}"]
    lines += _noticed(found)
    if begun.thrown:
        lines.append(
            f"--restart removes the earlier work, {begun.thrown:,} shard{'s' * (begun.thrown > 1)}, "
            "when its own first shard is finished"
        )
    if begun.touched:
        lines.append(
            f"changed in time since the job began, so the run will compare their content: {', '.join(begun.touched)}"
        )
    if "token_table" in figures:
        lines.append(_table(figures))
    return lines


def _noticed(found: JobPlan) -> list[str]:
    """Records that get an error; prompts that get fewer tokens than asked for, or have fields without effect."""
    figures, lines, about = found.figures, [], "" if found.counted else "about "
    if bad := figures.get("bad"):
        first = f"; the first: {figures['first_bad']}" if figures.get("first_bad") else ""
        lines.append(f"bad {found.unit}: {about}{bad:,}, each gets an error{first}")
    if figures.get("cut"):
        lines.append(f"prompts whose new tokens do not all fit in the model's context: {about}{figures['cut']:,}")
    if figures.get("undrawn"):
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
    return f"{size}; a stopped job loses at most one shard per worker ({counted(found.processes, 'worker')})"


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
        rows[f"{found.processes:,} workers and their supervisor"] = _mib(found.total_memory or 0)
    return _rows(rows)


def _disk(found: JobPlan, output: str) -> list[str]:
    from tilewright.formats.fetched import STAGED

    outputs = found.outputs
    if found.begun.state == "finished":
        return []
    about = "" if outputs.exact else "about "
    fits = "fits" if found.needed <= found.disk else "does NOT fit: free some space or write to another disk"
    output_bytes, shard_bytes = (f"{about}{_size(count)}" for count in (outputs.bytes, outputs.shards))
    parts = f"{output_bytes}; OUT.job beside it takes {shard_bytes}"
    if os.path.abspath(output) in STAGED:  # a URL
        parts = f"{output_bytes}, and {shard_bytes} of shards; both are on this disk until the upload"
    return [f"output: {parts}; the disk has {_size(found.disk)}: it {fits}"]


def _made(found: Declared, options: Any) -> list[str]:
    """Of prompts that no file holds."""
    figures = found.figures
    head = f"{found.records:,} prompts, {figures['prompt_tokens']:,} tokens, the longest {figures['longest']:,}"
    lines = [f"{head}; {options.max_tokens:,} new ones each"]
    if options.length + options.max_tokens > figures["context"]:
        context = f"these are more tokens than the model's context of {figures['context']:,}"
        lines.append(f"{context}: completions end there")
    return lines


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
