"""The rungs of softmax, for all engines.

A kernel is called as kernel(x, out): both (rows, C), rows contiguous, not empty; out may be x. CPU rungs take float32
NumPy arrays; `simt` float32 tensors on a GPU; `tile` tensors of any of the three dtypes on either side.
"""

from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import at_most, divides, engine, on
from tilewright.ops.softmax.problem import DEVICE_DTYPES

CPU = (on("cpu", "float32"),)
SIMT = (on("cuda", "float32"), engine("simt"))
TILE = (on("cuda", *DEVICE_DTYPES), engine("tile"))
WIDEST = 16384  # elements of a row in registers: 32 per thread of 16 warps

ladder = Ladder(
    "softmax",
    Rung(
        "cpu.naive",
        idea="one element after the other: largest, exp and sum, division",
        needs=CPU,
        kernel="softmax.cpu.naive:normalise",
    ),
    Rung(
        "cpu.vectors",
        after="cpu.naive",
        idea="whole vectors, several maxima and sums side by side; threads draw rows",
        needs=CPU,
        kernel="softmax.cpu.vectors:normalise",
        chosen=True,
    ),
    Rung(
        "simt.naive",
        idea="one thread per row: largest, exp and sum, division",
        needs=SIMT,
        kernel="softmax.simt.rows:naive",
    ),
    Rung(
        "simt.shared",
        after="simt.naive",
        idea="one block per row; its threads combine their results in shared memory, as a tree",
        needs=SIMT,
        kernel="softmax.simt.rows:shared",
    ),
    Rung(
        "simt.shuffles",
        after="simt.shared",
        idea="the threads of a warp exchange registers instead of shared memory",
        needs=SIMT,
        kernel="softmax.simt.rows:shuffles",
    ),
    Rung(
        "simt.online",
        after="simt.shuffles",
        idea="largest and sum in one pass, the sum rescaled as the largest grows",
        needs=SIMT,
        kernel="softmax.simt.rows:online",
    ),
    Rung(
        "simt.warps",
        after="simt.shuffles",
        idea="one warp per row: no barrier at all",
        needs=SIMT,
        kernel="softmax.simt.rows:warps",
        chosen=True,
    ),
    Rung(
        "simt.vectors",
        after="simt.warps",
        idea="loads and stores of 16 bytes",
        needs=(*SIMT, divides("C", 4)),
        kernel="softmax.simt.rows:vectors",
        chosen=True,
    ),
    Rung(
        "tile.online",
        idea="one chunk of a row at a time: largest and sum in one pass, the result in a second",
        needs=TILE,
        kernel="softmax.tile.online:run",
        chosen=True,
    ),
    Rung(
        "tile.registers",
        after="tile.online",
        idea="whole rows in registers: read once",
        needs=(*TILE, at_most("C", WIDEST)),
        kernel="softmax.tile.registers:run",
        chosen=True,
    ),
    taught=True,
)
