"""`tilewright plan JOB`: what a job would take, before it takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from typer import Argument, Option

from tilewright.cli._options import check_threads, parse_bytes, verb
from tilewright.cli._output import show


@dataclass
class Options:
    """One field an option."""

    job: Annotated[Literal["generate"], Argument(metavar="JOB", help="generate")]
    model: Annotated[str, Option("--model", "-p", metavar="PATH", help="A model directory, or model_parameters.bin.")]
    input: Annotated[str | None, Option("--input", "-i", metavar="FILE", help="Prompts, as for generate.")] = None
    count: Annotated[int | None, Option("--count", "-n", min=1, help="Only the first N prompts.")] = None
    length: Annotated[int, Option(min=1, help="Tokens of a prompt where no --input is given.")] = 16
    max_tokens: Annotated[int, Option(min=1, help="New tokens a prompt.")] = 8
    dtype: Annotated[Literal["float32", "bfloat16"], Option(help="Accuracy class of the products.")] = "float32"
    threads: Annotated[int | None, Option(min=1, help="CPU threads; one a core unless given.")] = None
    max_batch_memory: Annotated[str, Option(metavar="SIZE", help="Keys and values of a batch, as in 512M.")] = "1G"
    json: Annotated[bool, Option("--json", help="One JSON object on stdout.")] = False


@verb(Options)
def plan(options: Options) -> None:
    """What `tilewright generate` would take: memory, operations, and the least time where this machine was measured.

    Loads no weights. Every prompt counts, as if no two were equal and greedy tokens were chosen.
    """
    check_threads(options.threads)
    memory = parse_bytes(options.max_batch_memory)

    from tilewright.hardware import available_memory, cpu
    from tilewright.runtime.plan import plan_generate

    found = plan_generate(
        options.model, options.input, count=options.count, length=options.length, tokens=options.max_tokens,
        dtype=options.dtype, batch_memory=memory,
    )  # fmt: skip
    threads = options.threads or cpu().cores
    least_s, free = _least_seconds(found, threads), available_memory()
    if options.json:
        from msgspec.json import encode

        head = {"verb": "plan", "job": options.job, "model": options.model, "threads": threads}
        show(encode({**head, **found.as_dict(), "available_memory": free, "least_seconds": least_s}).decode())
        return
    show(_text(found, threads, free, least_s))


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


def _text(found: Any, threads: int, free: int, least_s: float | None) -> str:
    def mib(count: int) -> str:
        return f"{count / 2**20:>9,.0f} MiB"

    rows = {
        "weights, prepared": mib(found.prepared),
        "weights file, while they are prepared": mib(found.weights_file + found.copied),
        "keys and values": f"{mib(found.keys_values)}   {found.at_once:,} sequences at once",
        "workspace and records": mib(found.workspace),
        "embedding rows, mapped": mib(found.embedding),
        "program": mib(found.program),
        "compiling kernels, the first time": mib(found.compiling),
        "expected peak": f"{mib(found.peak_memory)}   {found.peak_memory:,} bytes; {free / 2**20:,.0f} MiB are free",
    }
    prompts = f"{found.prompts:,} prompts, {found.prompt_tokens:,} tokens, the longest {found.longest:,}"
    work = f"{found.flops / 1e9:,.1f} GFLOP for {found.prompts * found.new_tokens:,} new tokens, {found.dtype}"
    time = (
        f"at least {least_s:,.1f} s on {threads} threads, by this machine's measured roofs"
        if least_s is not None
        else f"not known: roofs of this machine with {threads} threads are not in ./results; "
        f"`tilewright ladder matmul --threads {threads} --save` measures them"
    )
    lines = [f"{prompts}; {found.new_tokens:,} new ones each", *(f"  {name:<38}{text}" for name, text in rows.items())]
    return "\n".join([*lines, f"work: {work}", f"time: {time}"])
