"""The rungs of embedding. run(ids, table, out): int64 (n,), float32 (V, C), float32 (n, C)."""

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import on
from tilewright.ops.embedding import gpu_ladder

ladder = Ladder("embedding", prefer=("cpu.rows", *gpu_ladder.PREFER))
needs = (on("cpu", "float32"),)


@ladder.rung("cpu.naive", after=None, needs=needs, idea="one number after the other")
def naive(ids, table, out):
    from tilewright.ops.embedding.cpu.naive import gather

    gather(ids, table, out)


@ladder.rung(
    "cpu.rows", after="cpu.naive", needs=needs, idea="whole rows as vectors, drawn by threads, the next ones prefetched"
)
def rows(ids, table, out):
    from tilewright.ops.embedding.cpu.rows import copy_rows

    copy_rows(ids, table, out)


gpu_ladder.declare(ladder)
