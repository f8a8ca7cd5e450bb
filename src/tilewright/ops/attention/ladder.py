"""The rungs of attention; those of a GPU are in `gpu_ladder`.

run(q, cache, spans, look, out): q (rows, heads * D) with contiguous rows, float32 or bfloat16 as the cache is, and out
float32 or bfloat16; bfloat16 heads have an even width and begin at whole words. Keys and values of a span's rows are in
the cache, or in `look.new`, and then the rung keeps them first.
"""

from tilewright.ops.attention import gpu_ladder
from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import amx_tiles, divides, on

ladder = Ladder("attention", prefer=("cpu.tiles", "cpu.threads", *gpu_ladder.PREFER))
float32, both = on("cpu", "float32"), on("cpu", "float32", "bfloat16")
ONE_QUERY = (1, 1, 1)


@ladder.rung(
    "cpu.unfused",
    after=None,
    needs=(both,),
    idea="four operations: scores, mask, softmax, values; all scores in memory",
)
def unfused(q, cache, spans, look, out):
    from tilewright.ops.attention.cpu.unfused import attend

    attend(q, cache, spans, look, out)


@ladder.rung("cpu.fused", after="cpu.unfused", needs=(float32,), idea="one kernel; the scores of a query stay in L1")
def fused(q, cache, spans, look, out):
    from tilewright.ops.attention.cpu.fused import attend

    attend(q, cache, spans, look, out)


@ladder.rung(
    "cpu.vectors", after="cpu.fused", needs=(both,), idea="a panel of keys is scored at once, rows of values as vectors"
)
def vectors(q, cache, spans, look, out):
    from tilewright.ops.attention.cpu.blocks import attend_alone

    attend_alone(q, cache, spans, look, out, rows=ONE_QUERY)


@ladder.rung(
    "cpu.blocks", after="cpu.vectors", needs=(both,), idea="a block of queries shares each loaded key and value"
)
def blocks(q, cache, spans, look, out):
    from tilewright.ops.attention.cpu.blocks import attend_alone

    attend_alone(q, cache, spans, look, out, rows=None)


@ladder.rung("cpu.threads", after="cpu.blocks", needs=(both,), idea="threads draw heads of sequences")
def all_threads(q, cache, spans, look, out):
    from tilewright.ops.attention.cpu.blocks import attend

    attend(q, cache, spans, look, out)


@ladder.rung(
    "cpu.tiles",
    after="cpu.threads",
    needs=(on("cpu", "bfloat16"), amx_tiles, divides("D", 32)),
    idea="16 queries against 16 keys, and odds times values, in AMX tiles; softmax with queries along lanes",
)
def tiles(q, cache, spans, look, out):
    from tilewright.ops.attention.cpu.blocks import attend
    from tilewright.simd import amx

    attend(q, cache, spans, look, out, tiles=amx.Hardware)


gpu_ladder.declare(ladder)
