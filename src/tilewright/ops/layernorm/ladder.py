"""The rungs of layernorm, for all engines.

A kernel is called as kernel(x, weight, bias, eps, out): x and out (rows, C), rows contiguous, not empty; out may be x.
CPU rungs take float32 NumPy arrays, out also bfloat16; `simt` contiguous float32 tensors on a GPU; `tile` tensors of
any of the three dtypes each.
"""

from tilewright.ops.core.ladder import BLOCKS, Ladder, Rung
from tilewright.ops.core.needs import at_most, divides, engine, on
from tilewright.ops.layernorm.problem import DEVICE_DTYPES

CPU = (on("cpu", "float32"),)
SIMT = (on("cuda", "float32"), engine("simt"))
TILE = (on("cuda", *DEVICE_DTYPES), engine("tile"))
WIDEST = 2048  # elements of a row in the registers of a warp: 64 per thread

# fmt: off
ladder = Ladder(
    "layernorm",
    Rung("cpu.naive", needs=CPU,
         idea="one element after the other: mean, variance, result",
         kernel="layernorm.cpu.naive:normalise"),
    Rung("cpu.vectors", after="cpu.naive", needs=CPU, chosen=True,
         idea="whole vectors, four partial sums of each kind; threads take rows",
         kernel="layernorm.cpu.vectors:normalise"),
    Rung("simt.naive", needs=SIMT,
         idea="one thread per row: mean, variance, result",
         kernel="layernorm.simt.rows:naive"),
    Rung("simt.shared", after="simt.naive", needs=SIMT,
         idea="one block per row; its threads combine their sums in shared memory, as a tree",
         kernel="layernorm.simt.rows:shared", swept={"block": BLOCKS}),
    Rung("simt.shuffles", after="simt.shared", needs=SIMT,
         idea="the threads of a warp exchange registers instead of shared memory",
         kernel="layernorm.simt.rows:shuffles"),
    Rung("simt.warps", after="simt.shuffles", needs=SIMT, chosen=True,
         idea="one warp per row: no barrier at all",
         kernel="layernorm.simt.rows:warps"),
    Rung("simt.vectors", after="simt.warps", needs=(*SIMT, divides("C", 4)), chosen=True,
         idea="loads and stores of 16 bytes",
         kernel="layernorm.simt.rows:vectors"),
    Rung("tile.chunks", needs=TILE, chosen=True,
         idea="one chunk of a row at a time, three passes",
         kernel="layernorm.tile.chunks:run"),
    Rung("tile.registers", after="tile.chunks", needs=(*TILE, at_most("C", WIDEST)), chosen=True,
         idea="whole rows in registers: read once",
         kernel="layernorm.tile.registers:run"),
)
