"""The rungs of pool, for all engines.

A kernel is called as kernel(x, begin, end, out): x (R, C) with contiguous rows, begin and end integers (n,), out (n, C)
with contiguous rows, not empty. CPU rungs take float32 NumPy arrays and int64 ranges inside x; `simt` float32 tensors
on a GPU; `tile` tensors of any of the three dtypes each. On a GPU a range outside x gives NaN.
"""

from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import engine, on
from tilewright.ops.pool.problem import DEVICE_DTYPES

CPU = (on("cpu", "float32"),)
SIMT = (on("cuda", "float32"), engine("simt"))
TILE = (on("cuda", *DEVICE_DTYPES), engine("tile"))

# fmt: off
ladder = Ladder(
    "pool",
    Rung("cpu.naive", needs=CPU,
         idea="one element of the result after the other, down the rows of its text",
         kernel="pool.cpu.scalar:run", options={"kernel": "naive"}),
    Rung("cpu.rows", after="cpu.naive", needs=CPU,
         idea="row after row, as memory has them, into sums in L1",
         kernel="pool.cpu.scalar:run", options={"kernel": "rows"}),
    Rung("cpu.vectors", after="cpu.rows", needs=CPU, chosen=True,
         idea="the sums of a block of columns stay in registers; threads take texts",
         kernel="pool.cpu.vectors:mean_rows"),
    Rung("simt.naive", needs=SIMT, chosen=True,
         idea="one thread per element of the result; neighbours read neighbouring columns",
         kernel="pool.simt.columns:run"),
    Rung("tile.rows", needs=TILE, chosen=True,
         idea="a program adds a block of rows at a time: many loads are in flight",
         kernel="pool.tile.rows:run"),
)
