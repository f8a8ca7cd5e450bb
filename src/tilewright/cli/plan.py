"""`tilewright plan VERB ...`: what a job would take. The command line is the job's own, with plan before it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from tilewright.cli import generate
from tilewright.cli._jobs import resolve_dtype
from tilewright.cli._options import check_threads, parse_bytes, parse_rungs, verb
from tilewright.cli._output import say, show, show_json
from tilewright.formats.sampling_fields import DRAWING

JOBS = ("generate", "classify", "draw", "convolve")
PROMPTS = Option("--input", "-i", metavar="FILE", help="Prompts; without: as many as --count says.")
COMPLETIONS = Option("--output", "-o", metavar="FILE", help="Completions; without: JSON lines, in this directory.")
CONTEXT = {"allow_interspersed_args": False}  # what stands behind the verb is the verb's


@dataclass
class Options:
    """One field an option."""

    command: Annotated[list[str], Argument(metavar="VERB ...", help=f"The job: {', '.join(JOBS)}, with its options.")]


@dataclass(kw_only=True)
class GenerateOptions(generate.Options):
    """Those of `generate`, of which -i and -o may be left out, and some that only a plan has."""

    input: Annotated[str | None, PROMPTS] = None  # type: ignore[assignment]
    output: Annotated[str | None, COMPLETIONS] = None  # type: ignore[assignment]
    length: Annotated[int, Option(min=1, help="Tokens of a prompt where no --input is given.")] = 16
    gpu_memory: Annotated[
        str | None, Option(metavar="SIZE", help="Of the GPU, as in 141G; this machine's, if it has one.")
    ] = None


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

    module = import_module(f"tilewright.cli.{job}")

    @verb(GenerateOptions if job == "generate" else module.Options)
    def planned(options: Any) -> None:
        with ExitStack() as stack:
            _enter(stack, options, job)
            text, figures = _generate(options) if job == "generate" else _planned(job, module.job_of(options))
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


def _enter(stack: ExitStack, options: Any, job: str) -> None:
    rungs = parse_rungs(options.rung or [], job, options.device)
    check_threads(options.threads)
    resolve_dtype(options)

    from tilewright.ops.core.ladder import forcing
    from tilewright.ops.core.launch import threads

    stack.enter_context(threads(options.threads))
    stack.enter_context(forcing(**rungs))


def _planned(name: str, job: Any) -> tuple[str, dict[str, Any]]:
    """In words, and as figures."""
    found = import_module(f"tilewright.runtime.verbs.{name}.plan").plan(job)
    return "\n".join([*_head(found), *_memory(found.parts, found), *_disk(found)]), found.as_dict()


def _head(found: Any) -> list[str]:
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


def _noticed(found: Any) -> list[str]:
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


def _shard(found: Any) -> str:
    """How large one is, and what a kill costs."""
    cut = found.begun.cut
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


def _memory(parts: Any, found: Any) -> list[str]:
    """A line a part, and the peak."""
    from tilewright.hardware import available_memory

    if not parts:
        return ["memory on a GPU: as much as a batch takes; one that does not fit is halved"]
    free, peak = available_memory(), found.peak_memory
    rows = {part.name: _mib(part.bytes) for part in parts if part.bytes}
    rows["expected peak"] = f"{_mib(peak)}   {peak:,} bytes; {free / 2**20:,.0f} MiB are free"
    if found.supervised:
        rows[f"{found.processes:,} workers and who hands out shards"] = _mib(found.total_memory)
    return _rows(rows)


def _disk(found: Any) -> list[str]:
    outputs = found.outputs
    if found.begun.state == "finished":
        return []
    about = "" if outputs.exact else "about "
    fits = "fits" if found.needed <= found.disk else "does NOT fit: free some space or write to another disk"
    return [
        f"output: {about}{_size(outputs.bytes)}; beside it OUT.job keeps {about}{_size(outputs.shards)}; "
        f"the disk has {_size(found.disk)}: it {fits}"
    ]


def _generate(options: Any) -> tuple[str, dict[str, Any]]:
    """The plan with operations and time; without an input, of prompts that are nowhere."""
    from tilewright.hardware import available_memory, cpu, gpus
    from tilewright.runtime.devices import place_for

    if options.device == "auto":
        options.device = place_for("auto", options.dtype)
    if options.device == "cuda" and not (options.gpu_memory or gpus()):
        from tilewright.errors import ResourceError

        raise ResourceError("there is no GPU here whose memory could be read", remedy="give --gpu-memory, as in 80G")
    memory = parse_bytes(options.gpu_memory, "--gpu-memory") if options.gpu_memory else None
    threads = options.threads or cpu().cores
    if options.input is None:
        lines, figures, model = _made(options, memory)
    else:
        from tilewright.runtime.verbs.generate.plan import plan

        options.output = options.output or "out.jsonl"
        found, model = plan(generate.job_of(options), memory)
        on_gpu = found.device != "cpu"
        lines = [*_head(found), *(_on_gpu(model) if on_gpu else _memory(found.parts, found)), *_disk(found)]
        figures = model.as_dict() | found.as_dict() | {"peak_memory": model.peak_memory}
    least_s = None if options.device == "cuda" else _least_seconds(model, threads)
    figures |= {"threads": threads, "available_memory": available_memory(), "least_seconds": least_s}
    return "\n".join([*lines, *_effort(options, model, threads, least_s)]), figures


def _made(options: Any, memory: int | None) -> tuple[list[str], dict[str, Any], Any]:
    """(lines, figures, the plan) of prompts that are nowhere."""
    from tilewright.generation.attention import BATCH_MEMORY
    from tilewright.hardware import available_memory, gpus
    from tilewright.ops.core.arrays import one_of
    from tilewright.ops.core.ladder import forced
    from tilewright.runtime.verbs.generate.plan import made_prompts, plan_generate
    from tilewright.runtime.verbs.generate.plan_device import plan_on_gpu
    from tilewright.runtime.verbs.generate.task import check_forced

    check_forced(generate._params(options), forced(), options.device)
    what: dict[str, Any] = {"count": options.count, "length": options.length}
    config, prompts = made_prompts(options.model, **what)
    if options.device == "cuda":
        found: Any = plan_on_gpu(
            config, prompts, tokens=options.max_tokens, dtype=options.dtype, memory=memory or gpus()[0].memory,
            sampled=options.temperature > 0,
        )  # fmt: skip
        lines = _on_gpu(found)
    else:
        one_of("plan", "dtype", options.dtype, ("float32", "bfloat16"))
        batch = (
            parse_bytes(options.max_batch_memory, "--max-batch-memory") if options.max_batch_memory else BATCH_MEMORY
        )
        what |= {"tokens": options.max_tokens, "dtype": options.dtype, "sampled": options.temperature > 0}
        found = plan_generate(options.model, batch_memory=batch, **what)
        rows = {part.name: _mib(part.bytes) for part in found.parts if part.bytes}
        free = available_memory()
        peak = f"{found.peak_memory:,} bytes; {free / 2**20:,.0f} MiB are free"
        lines = _rows(rows | {"expected peak": f"{_mib(found.peak_memory)}   {peak}"})
    if options.length + options.max_tokens > config.n_positions:
        lines = [
            f"these are more tokens than the model's context of {config.n_positions:,}: completions end there",
            *lines,
        ]
    head = f"{prompts.count:,} prompts, {prompts.tokens:,} tokens, the longest {prompts.longest:,}"
    about = {"verb": "plan", "job": "generate", "model": options.model, "device": options.device}
    return [f"{head}; {options.max_tokens:,} new ones each", *lines], about | vars(prompts) | found.as_dict(), found


def _on_gpu(found: Any) -> list[str]:
    return _rows(
        {
            "weights": _mib(found.weights),
            "keys and values": f"{_mib(found.keys_values)}   {found.at_once:,} sequences at once",
            "workspace": _mib(found.workspace),
            "CUDA": _mib(found.program),
            "expected peak, on the GPU": _mib(found.peak_memory),
        }
    )


def _effort(options: Any, found: Any, threads: int, least_s: float | None) -> list[str]:
    work = f"work of a worker: {found.flops / 1e9:,.1f} GFLOP, {found.dtype}; {found.at_once:,} sequences at once"
    if options.device == "cuda":
        return [f"{work}; {found.moved / 1e9:,.1f} GB through the GPU's memory"]
    time = (
        f"at least {least_s:,.1f} s on {threads} threads, by this machine's measured roofs"
        if least_s is not None
        else f"not known: roofs of this machine with {threads} threads are not in ./results; "
        f"`tilewright ladder matmul --threads {threads} --save` measures them"
    )
    return [work, f"time: {time}"]


def _least_seconds(found: Any, threads: int) -> float | None:
    """By the roofs that were measured on this machine with as many threads; None if none were."""
    from pathlib import Path

    from tilewright.bench.results import read
    from tilewright.hardware import machine_name

    same = (machine_name(), found.dtype, threads)
    rows = [row for row in read(Path("results")) if (row.machine, row.dtype, row.threads) == same]
    gflops = max((row.roof_gflops or 0 for row in rows), default=0)
    gbytes = max((row.roof_gbytes_s or 0 for row in rows), default=0)
    return max(found.flops / gflops, found.bytes_read / gbytes) / 1e9 if gflops and gbytes else None


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
