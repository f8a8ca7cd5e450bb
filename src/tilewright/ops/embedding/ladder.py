"""The rungs of embedding. run(ids, table, out): int64 (n,), float32 (V, C), float32 (n, C)."""

from tilewright.ops._ladder import Ladder

ladder = Ladder("embedding", prefer=("cpu.rows",))


@ladder.rung("cpu.naive", after=None, idea="one number after the other")
def naive(ids, table, out):
    from tilewright.ops.embedding.cpu.naive import gather

    gather(ids, table, out)


@ladder.rung("cpu.rows", after="cpu.naive", idea="whole rows as vectors, drawn by threads, the next ones prefetched")
def rows(ids, table, out):
    from tilewright.ops.embedding.cpu.rows import copy_rows

    copy_rows(ids, table, out)
