"""The rungs of softmax, for all engines.

A kernel is called as kernel(x, out): both (rows, C), rows contiguous, not empty; out may be x. CPU rungs take float32
NumPy arrays; `simt` float32 tensors on a GPU; `tile` tensors of any of the three dtypes on either side.
"""

from tilewright.ops.core.ladder import BLOCKS, Ladder, Rung
from tilewright.ops.core.needs import at_most, divides, engine, on
from tilewright.ops.softmax.problem import DEVICE_DTYPES

CPU = (on("cpu", "float32"),)
SIMT = (on("cuda", "float32"), engine("simt"))
TILE = (on("cuda", *DEVICE_DTYPES), engine("tile"))
WIDEST = 16384  # elements of a row in registers: 32 per thread of 16 warps

# fmt: off
ladder = Ladder(
    "softmax",
    Rung("cpu.naive", needs=CPU,
         idea="one element after the other: largest, exp and sum, division",
         kernel="softmax.cpu.naive:normalise"),
    Rung("cpu.vectors", after="cpu.naive", needs=CPU, chosen=True,
         idea="whole vectors, several maxima and sums side by side; threads take rows",
         kernel="softmax.cpu.vectors:normalise"),
    Rung("simt.naive", needs=SIMT,
         idea="one thread per row: largest, exp and sum, division",
         kernel="softmax.simt.rows:naive"),
    Rung("simt.shared", after="simt.naive", needs=SIMT,
         idea="one block per row; its threads combine their results in shared memory, as a tree",
         kernel="softmax.simt.rows:shared", swept={"block": BLOCKS}),
    Rung("simt.shuffles", after="simt.shared", needs=SIMT,
         idea="the threads of a warp exchange registers instead of shared memory",
         kernel="softmax.simt.rows:shuffles"),
    Rung("simt.online", after="simt.shuffles", needs=SIMT,
         idea="largest and sum in one pass, the sum rescaled as the largest grows",
         kernel="softmax.simt.rows:online"),
    Rung("simt.warps", after="simt.shuffles", needs=SIMT, chosen=True,
         idea="one warp per row: no barrier at all",
         kernel="softmax.simt.rows:warps"),
    Rung("simt.vectors", after="simt.warps", needs=(*SIMT, divides("C", 4)), chosen=True,
         idea="loads and stores of 16 bytes",
         kernel="softmax.simt.rows:vectors"),
    Rung("tile.online", needs=TILE, chosen=True,
         idea="one chunk of a row at a time: largest and sum in one pass, the result in a second",
         kernel="softmax.tile.online:run"),
    Rung("tile.registers", after="tile.online", needs=(*TILE, at_most("C", WIDEST)), chosen=True,
         idea="whole rows in registers: read once",
         kernel="softmax.tile.registers:run"),
    taught=True,
)
