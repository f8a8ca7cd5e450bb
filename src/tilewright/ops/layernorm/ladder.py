"""The rungs of layernorm, for all engines.

A kernel is called as kernel(x, weight, bias, eps, out): x and out (rows, C), rows contiguous, not empty; out may be x.
CPU rungs take float32 NumPy arrays, out also bfloat16; `simt` contiguous float32 tensors on a GPU; `tile` tensors of
any of the three dtypes each.
"""

from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import at_most, divides, engine, on
from tilewright.ops.layernorm.problem import DEVICE_DTYPES

CPU = (on("cpu", "float32"),)
SIMT = (on("cuda", "float32"), engine("simt"))
TILE = (on("cuda", *DEVICE_DTYPES), engine("tile"))
WIDEST = 2048  # elements of a row in the registers of a warp: 64 per thread

ladder = Ladder(
    "layernorm",
    Rung(
        "cpu.naive",
        idea="one element after the other: mean, variance, result",
        needs=CPU,
        kernel="layernorm.cpu.naive:normalise",
    ),
    Rung(
        "cpu.vectors",
        after="cpu.naive",
        idea="whole vectors, four partial sums of each kind; threads draw rows",
        needs=CPU,
        kernel="layernorm.cpu.vectors:normalise",
        chosen=True,
    ),
    Rung(
        "simt.naive",
        idea="one thread per row: mean, variance, result",
        needs=SIMT,
        kernel="layernorm.simt.rows:naive",
    ),
    Rung(
        "simt.shared",
        after="simt.naive",
        idea="one block per row; its threads combine their sums in shared memory, as a tree",
        needs=SIMT,
        kernel="layernorm.simt.rows:shared",
    ),
    Rung(
        "simt.shuffles",
        after="simt.shared",
        idea="the threads of a warp exchange registers instead of shared memory",
        needs=SIMT,
        kernel="layernorm.simt.rows:shuffles",
    ),
    Rung(
        "simt.warps",
        after="simt.shuffles",
        idea="one warp per row: no barrier at all",
        needs=SIMT,
        kernel="layernorm.simt.rows:warps",
        chosen=True,
    ),
    Rung(
        "simt.vectors",
        after="simt.warps",
        idea="loads and stores of 16 bytes",
        needs=(*SIMT, divides("C", 4)),
        kernel="layernorm.simt.rows:vectors",
        chosen=True,
    ),
    Rung(
        "tile.chunks",
        idea="one chunk of a row at a time, three passes",
        needs=TILE,
        kernel="layernorm.tile.chunks:run",
        chosen=True,
    ),
    Rung(
        "tile.registers",
        after="tile.chunks",
        idea="whole rows in registers: read once",
        needs=(*TILE, at_most("C", WIDEST)),
        kernel="layernorm.tile.registers:run",
        chosen=True,
    ),
)
