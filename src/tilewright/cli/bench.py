"""`tilewright bench WORKLOAD`: a workload end to end, side by side with its peers."""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def bench(
    workload: Annotated[Literal["sentiment"], typer.Argument(metavar="WORKLOAD", help="sentiment")],
    against: Annotated[str, typer.Option(help="Peers, or 'none'.")] = "torch",
    data: Annotated[str | None, typer.Option("--input", "-i", metavar="FILE", help="Token ids, i32 [n][16].")] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Only the first N sentences.")] = None,
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option(help="Accuracy class.")] = "float32",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; one a core unless given.")] = None,
    save: Annotated[bool, typer.Option("--save", help="Add the rows to results/ of the current directory.")] = False,
) -> None:
    """Time the whole job on this machine, its result checked first.

    Uses the sentences of --input, else the course's 16,384 if they lie in ../shared/data/course, else the sample that
    is shipped.
    """
    from tilewright.bench.results import save_here
    from tilewright.bench.sentiment import bench as run
    from tilewright.demo import sentences
    from tilewright.ops._threads import thread_count

    ids, source = sentences(data)
    ids = ids[:count]
    typer.echo(f"{len(ids):,} sentences of {source}, {dtype}, {threads or thread_count()} threads")
    peer = None if against == "none" else against
    found = run(
        ids, count=threads or thread_count(), dtype=dtype, against=peer, say=lambda text: typer.echo(f"  {text}")
    )
    for row in found.rows:
        ratio = f"   {row.peer_ratio:.1f} x {row.peer}" if row.peer_ratio else ""
        typer.echo(f"{row.rung:<14} {row.rows / row.median_s:>12,.1f} sentences/s{ratio}")
    if save:
        for path in save_here(found.rows):
            typer.echo(f"written to {path}")
