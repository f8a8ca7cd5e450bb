"""`tilewright plan JOB`: what a job would take, before it takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from typer import Argument, BadParameter, Option

from tilewright.cli._options import check_threads, parse_bytes, verb
from tilewright.cli._output import show


@dataclass
class Options:
    """One field an option."""

    job: Annotated[Literal["generate"], Argument(metavar="JOB", help="generate")]
    model: Annotated[
        str, Option("--model", "-p", metavar="PATH", help="A name such as poet, a directory, or model_parameters.bin.")
    ]
    input: Annotated[str | None, Option("--input", "-i", metavar="FILE", help="Prompts, as for generate.")] = None
    count: Annotated[int | None, Option("--count", "-n", min=1, help="Only the first N prompts.")] = None
    length: Annotated[int, Option(min=1, help="Tokens of a prompt where no --input is given.")] = 16
    max_tokens: Annotated[int, Option(min=1, help="New tokens a prompt.")] = 8
    device: Annotated[Literal["cpu", "cuda"], Option(help="Where it would run.")] = "cpu"
    workers: Annotated[int, Option(min=1, max=1024, help="Processes that would share the work.")] = 1
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], Option(help="Accuracy; float16: GPU.")] = "float32"
    threads: Annotated[int | None, Option(min=1, help="CPU threads; one a core unless given.")] = None
    max_batch_memory: Annotated[str, Option(metavar="SIZE", help="Keys and values of a batch, as in 512M.")] = "1G"
    gpu_memory: Annotated[
        str | None, Option(metavar="SIZE", help="Of the GPU, as in 141G; this machine's, if it has one.")
    ] = None
    json: Annotated[bool, Option("--json", help="One JSON object on stdout.")] = False


@verb(Options)
def plan(options: Options) -> None:
    """What `tilewright generate` would take: memory, operations, and the least time where this machine was measured.

    Loads no weights. Every prompt counts, as if no two were equal and greedy tokens were chosen. Each worker takes the
    memory.
    """
    check_threads(options.threads)
    if options.device == "cuda":
        _plan_on_gpu(options)
        return
    if options.dtype == "float16":
        raise BadParameter("the CPU has no float16; write bfloat16, or --device cuda", param_hint="--dtype")
    memory = parse_bytes(options.max_batch_memory)

    from tilewright.hardware import available_memory, cpu
    from tilewright.runtime.plan import Prompts, plan_generate

    found = plan_generate(
        options.model, options.input, count=options.count, length=options.length, tokens=options.max_tokens,
        dtype=options.dtype, batch_memory=memory,
    )  # fmt: skip
    threads = options.threads or cpu().cores
    least_s, free = _least_seconds(found, threads), available_memory()
    shards = _shards(options, Prompts(found.prompts, found.prompt_tokens, found.longest))
    if options.json:
        _show_json(options, found.as_dict() | {"threads": threads, "available_memory": free}, shards, least_s)
        return
    show(
        "\n".join(
            [*_lines(found, free), _cut(found.prompts, shards, options.workers), *_effort(found, threads, least_s)]
        )
    )


def _plan_on_gpu(options: Options) -> None:
    from tilewright.errors import UsageError
    from tilewright.hardware import gpus
    from tilewright.runtime.plan import prompts_of
    from tilewright.runtime.plan_device import plan_on_gpu

    if not (options.gpu_memory or gpus()):
        raise UsageError("there is no GPU here whose memory could be asked for", hint="say --gpu-memory 80G")
    memory = parse_bytes(options.gpu_memory) if options.gpu_memory else gpus()[0].memory
    config, prompts = prompts_of(options.model, options.input, count=options.count, length=options.length)
    found = plan_on_gpu(config, prompts, tokens=options.max_tokens, dtype=options.dtype, memory=memory)
    shards, figures = _shards(options, prompts), vars(prompts) | found.as_dict()
    if options.json:
        _show_json(options, {**figures, "gpu_memory": memory}, shards, None)
        return
    rows = {
        "weights": _mib(found.weights),
        "keys and values": f"{_mib(found.keys_values)}   {found.at_once:,} sequences at once",
        "workspace": _mib(found.workspace),
        "CUDA": _mib(found.program),
        "expected peak": f"{_mib(found.peak_memory)}   of {memory / 2**20:,.0f} MiB on the GPU",
    }
    head = f"{prompts.count:,} prompts, {prompts.tokens:,} tokens, the longest {prompts.longest:,}"
    work = f"work: {found.flops / 1e9:,.1f} GFLOP, {found.moved / 1e9:,.1f} GB through the GPU's memory"
    show("\n".join([f"{head}; {options.max_tokens:,} new ones each", *_table(rows),
                    _cut(prompts.count, shards, options.workers), work]))  # fmt: skip


def _shards(options: Options, prompts: Any) -> int:
    from tilewright.runtime.plan import shards_of

    return shards_of(options.input, prompts, count=options.count, tokens=options.max_tokens, device=options.device,
                     workers=options.workers)  # fmt: skip


def _show_json(options: Options, figures: dict[str, Any], shards: int, least_s: float | None) -> None:
    from msgspec.json import encode

    head = {"verb": "plan", "job": options.job, "model": options.model, "device": options.device}
    show(encode({**head, **figures, "shards": shards, "least_seconds": least_s}).decode())


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


def _table(rows: dict[str, str]) -> list[str]:
    return [f"  {name:<38}{text}" for name, text in rows.items()]


def _cut(prompts: int, shards: int, workers: int) -> str:
    each = -(-prompts // max(shards, 1))
    return f"shards: {shards:,}, of about {each:,} prompts; a stopped job loses at most one a worker ({workers:,})"


def _lines(found: Any, free: int) -> list[str]:
    rows = {
        "weights, prepared": _mib(found.prepared),
        "weights file, while they are prepared": _mib(found.weights_file + found.copied),
        "keys and values": f"{_mib(found.keys_values)}   {found.at_once:,} sequences at once",
        "workspace and records": _mib(found.workspace),
        "embedding rows, mapped": _mib(found.embedding),
        "program": _mib(found.program),
        "compiling kernels, the first time": _mib(found.compiling),
        "expected peak": f"{_mib(found.peak_memory)}   {found.peak_memory:,} bytes; {free / 2**20:,.0f} MiB are free",
    }
    prompts = f"{found.prompts:,} prompts, {found.prompt_tokens:,} tokens, the longest {found.longest:,}"
    return [f"{prompts}; {found.new_tokens:,} new ones each", *_table(rows)]


def _effort(found: Any, threads: int, least_s: float | None) -> list[str]:
    work = f"{found.flops / 1e9:,.1f} GFLOP for {found.prompts * found.new_tokens:,} new tokens, {found.dtype}"
    time = (
        f"at least {least_s:,.1f} s on {threads} threads, by this machine's measured roofs"
        if least_s is not None
        else f"not known: roofs of this machine with {threads} threads are not in ./results; "
        f"`tilewright ladder matmul --threads {threads} --save` measures them"
    )
    return [f"work: {work}", f"time: {time}"]
