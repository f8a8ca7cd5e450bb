"""The rungs of rope, for all engines.

A kernel is called as kernel(x, positions, rotation, heads, out): x and out (rows, heads * D), rows contiguous, not
empty; out may be x. positions: integers (rows,), on the CPU int64, each below the rotation's length. CPU rungs take
float32 and bfloat16 NumPy arrays, out of x's dtype or float32; `simt` float32 tensors on a GPU; `tile` tensors of any
of the three dtypes each.
"""

from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import engine, on
from tilewright.ops.rope.problem import DEVICE_DTYPES

CPU = (on("cpu", "float32", "bfloat16"),)
SIMT = (on("cuda", "float32"), engine("simt"))
TILE = (on("cuda", *DEVICE_DTYPES), engine("tile"))

# fmt: off
ladder = Ladder(
    "rope",
    Rung("cpu.naive", needs=CPU,
         idea="cosine and sine of the angle are computed for every pair of elements",
         kernel="rope.cpu.scalar:run", options={"kernel": "naive"}),
    Rung("cpu.shared", after="cpu.naive", needs=CPU,
         idea="cosines and sines are computed once per row, and all heads use them",
         kernel="rope.cpu.scalar:run", options={"kernel": "shared"}),
    Rung("cpu.table", after="cpu.shared", needs=CPU,
         idea="a table has the cosines and sines of all positions, computed once per model",
         kernel="rope.cpu.scalar:run", options={"kernel": "table"}),
    Rung("cpu.vectors", after="cpu.table", needs=CPU, chosen=True,
         idea="whole vectors, and 16-bit rows as they are; threads take rows",
         kernel="rope.cpu.vectors:rotate"),
    Rung("simt.naive", needs=SIMT,
         idea="one thread per pair of elements, which computes its cosine and sine",
         kernel="rope.simt.pairs:run", options={"kernel": "naive"}, c=2.0),
    Rung("simt.table", after="simt.naive", needs=SIMT, chosen=True,
         idea="a thread reads its cosine and sine from the table",
         kernel="rope.simt.pairs:run", options={"kernel": "table"}),
    Rung("tile.rows", needs=TILE, chosen=True,
         idea="a block of rows of one head per program, two halves of each row in registers",
         kernel="rope.tile.rows:run"),
)
