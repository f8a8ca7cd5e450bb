"""The rungs of attention, for all engines.

A kernel is called as kernel(q, cache, spans, options, out). q: (rows, heads * D) with contiguous rows, of the cache's
dtype, float32 or bfloat16. out: float32 or bfloat16. bfloat16 heads have an even width, and begin at whole words. The
keys and values of a span's rows are in the cache, or in `options.new`; then the kernel first writes them to the cache.
On a GPU the arguments are torch tensors, a DeviceCache, and DeviceSpans or Steps.
"""

from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import amx_tiles, at_most, divides, engine, hopper, on

ONE_QUERY = (1, 1, 1)  # rows of a block of queries
WIDEST = 128  # elements of a head; a block of queries of twice as many would not fit in the registers
TRUNCATED = 4.0  # constant of the bound: matrix units truncate, and products of two parts leave the smallest out

CPU = (on("cpu", "float32"),)
CPU_BOTH = (on("cpu", "float32", "bfloat16"),)
SIMT = (on("cuda", "float32"), engine("simt"))
TILE = (on("cuda", "float32", "bfloat16", "float16"), at_most("D", WIDEST), engine("tile"))
LONG = (on("cuda", "bfloat16", "float16"), at_most("D", 64), divides("D", 64), engine("tile"), hopper)

# fmt: off
ladder = Ladder(
    "attention",
    Rung("cpu.unfused", needs=CPU_BOTH, calls=("matmul", "softmax"),
         idea="four operations: scores, mask, softmax, values; all scores in memory",
         kernel="attention.cpu.unfused:attend"),
    Rung("cpu.fused", after="cpu.unfused", needs=CPU,
         idea="one kernel; the scores of a query stay in L1",
         kernel="attention.cpu.fused:attend"),
    Rung("cpu.vectors", after="cpu.fused", needs=CPU_BOTH,
         idea="a panel of keys is scored at once, rows of values as vectors; threads take heads",
         kernel="attention.cpu.blocks:attend", options={"rows": ONE_QUERY}),
    Rung("cpu.blocks", after="cpu.vectors", needs=CPU_BOTH, chosen=True,
         idea="a block of queries shares each loaded key and value; threads take heads of sequences",
         kernel="attention.cpu.blocks:attend"),
    Rung("cpu.tiles", after="cpu.blocks", needs=(on("cpu", "bfloat16"), amx_tiles, divides("D", 32)), chosen=True,
         idea="16 queries by 16 keys, and weights by values, in AMX tiles; softmax with queries along lanes",
         kernel="attention.cpu.blocks:attend_in_tiles"),
    Rung("simt.unfused", needs=SIMT,
         idea="four kernels: append, scores with the mask, softmax, values; all scores in memory",
         kernel="attention.simt.launch:attend", options={"kernel": "unfused"}),
    Rung("simt.fused", after="simt.unfused", needs=SIMT, chosen=True,
         idea="one kernel, one warp per query: no score leaves its registers",
         kernel="attention.simt.launch:attend", options={"kernel": "fused"}),
    Rung("tile.blocks", needs=TILE, chosen=True, c=TRUNCATED,
         idea="a block of queries shares each loaded key and value, on matrix units",
         kernel="attention.tile.launch:attend"),
    Rung("tile.kept", after="tile.blocks", needs=TILE, chosen=True, c=TRUNCATED,
         idea="the program that attends to new keys and values appends them: they are not read back",
         kernel="attention.tile.launch:attend_and_append"),
    Rung("tile.direct", after="tile.kept", needs=TILE, chosen=True, c=TRUNCATED,
         idea="keys and values that nobody reads again are used where the product wrote them",
         kernel="attention.tile.launch:attend_directly"),
    Rung("tile.specialized", after="tile.direct", needs=LONG, chosen=True, c=TRUNCATED,
         idea="for long spans a warp loads blocks of keys, and two warpgroups attend to each of them",
         kernel="attention.tile.launch:attend_specialized"),
)
