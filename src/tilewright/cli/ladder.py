"""`tilewright ladder OP`: every kernel of an operation, checked, then timed beside the vendor's library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from tilewright.cli._options import parse_threads, verb
from tilewright.cli._output import show


@dataclass
class Options:
    """One field an option."""

    op: Annotated[str, Argument(metavar="OP", help="An operation, such as matmul; or all.")]
    m: Annotated[int | None, Option("--m", min=1, help="Rows (of the batch).")] = None
    n: Annotated[int | None, Option("--n", min=1, help="Columns; with --m and --k, one product of that size.")] = None
    k: Annotated[int | None, Option("--k", min=1, help="Depth.")] = None
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "tf32"] | None,
        Option(help="Only this accuracy class; the last two on a GPU."),
    ] = None
    device: Annotated[Literal["cpu", "cuda"], Option(help="Where.")] = "cpu"
    threads: Annotated[str | None, Option(metavar="LIST", help="Numbers of threads, as in 1,2.")] = None
    rung: Annotated[str | None, Option(help="Only this kernel.")] = None
    label: Annotated[str | None, Option(help="Only sizes whose name contains this.")] = None
    explain: Annotated[bool, Option("--explain", help="Which kernel would run, and why; time nothing.")] = False
    save: Annotated[bool, Option("--save", help="Add the rows to results/ of the current directory.")] = False


@verb(Options)
def ladder(options: Options) -> None:
    """Climb a ladder: time, rate, share of the measured roof, and times the rung below, at the sizes of the models.

    A rung that is far from its turn is timed on fewer rows; one whose check fails is never timed.
    """
    counts = None if options.threads is None else parse_threads(options.threads)

    from tilewright.bench.climb import parts
    from tilewright.ops._ladder import operations
    from tilewright.ops._threads import thread_count

    counts = counts or (tuple(sorted({1, thread_count()})) if options.device == "cpu" else (0,))
    for op in operations() if options.op == "all" else [options.op]:
        tower, spec = parts(op)
        if options.op == "all" and options.device != "cpu" and not hasattr(spec, "device_sizes"):
            continue
        for case in _cases(spec, options):
            if options.explain:
                show(f"{op} {case.problem}\n{_explained(tower, case, options.rung)}\n")
                continue
            for count in counts:
                _climb(op, case, count, options)


def _climb(op: str, case: Any, count: int, options: Options) -> None:
    """Time the rungs of one case on `count` threads; when nobody reads any more, only what is saved is worth it."""
    from tilewright.bench.climb import climb
    from tilewright.bench.results import save_here

    where = f"{count} thread{'s' * (count > 1)}" if count else "on the GPU"
    read = show(f"{op} {case.name}  {case.label}  {where}")
    if not read and not options.save:
        raise typer.Exit
    rows = list(climb(op, case, count=count, only=options.rung))
    show(_table(rows))
    if options.save:
        save_here(rows)


def _cases(spec: Any, options: Options) -> list[Any]:
    """The op's sizes, or the one that the options name."""
    from tilewright.bench.climb import replaced
    from tilewright.errors import UsageError

    wanted = options.label or ""
    if options.device != "cpu" and not hasattr(spec, "device_sizes"):
        raise UsageError(f"{spec.__name__.split('.')[-2]} has no kernels for a GPU", hint="--device cpu has some")
    every = spec.sizes() if options.device == "cpu" else spec.device_sizes()
    found = [case for case in every if options.dtype in (None, case.dtype) and wanted in f"{case.label} {case.name}"]
    sizes = {"M": options.m, "N": options.n, "K": options.k}
    if not found:
        raise UsageError("no size has that name and dtype")
    if not any(sizes.values()):
        return found
    return list({case.name: case for case in (replaced(case, **sizes, label="") for case in found)}.values())


def _explained(tower: Any, case: Any, rung: str | None) -> str:
    from tilewright.ops._ladder import using

    with using(**({tower.op: rung} if rung else {})):
        return tower.explain(case.problem)


def _table(rows: list[Any]) -> str:
    """Text columns, the rungs from the lowest to the highest."""
    lines = [f"  {'rung':<22}{'time':>12}{'GFLOP/s':>10}{'GB/s':>8}{'roof':>7}{'x below':>9}{'x peer':>8}  check"]
    for row in rows:
        few = "" if row.rows == max(r.rows for r in rows) else f"  ({row.rows} rows)"
        numbers = (
            f"{row.median_s * 1e3:>9.3f} ms",
            f"{row.gflops:>10,.1f}" if row.gflops else f"{'-':>10}",
            f"{row.gbytes_s:>8.1f}",
            f"{row.roof_share:>6.0%} ",
            f"{row.versus_below:>8.2f}x" if row.versus_below else f"{'':>9}",
            f"{row.peer_ratio:>7.2f}x" if row.peer_ratio else f"{'':>8}",
        )
        lines.append(f"  {row.rung:<22}{''.join(numbers)}  {row.check}{few}")
    return "\n".join(lines)
