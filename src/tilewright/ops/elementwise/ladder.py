"""The rungs of the elementwise functions, for all engines.

A kernel is called as kernel(function, x, out): a name of `reference.FUNCTIONS` and two arrays of one shape; out may be
x. CPU rungs take float32 (rows, C) with contiguous rows; `simt` contiguous float32 tensors on a GPU; `tile` tensors of
any of the three dtypes on either side.
"""

from tilewright.ops.core.ladder import BLOCKS, Ladder, Rung
from tilewright.ops.core.needs import engine, on
from tilewright.ops.elementwise.problem import DEVICE_DTYPES

CPU = (on("cpu", "float32"),)
SIMT = (on("cuda", "float32"), engine("simt"))
TILE = (on("cuda", *DEVICE_DTYPES), engine("tile"))
C_TILE = 2.0  # of its bound: the GPU's division errs by 2 ULP, the CPU's not at all; 1.0 was measured on an H200

# fmt: off
ladder = Ladder(
    "elementwise",
    Rung("cpu.naive", needs=CPU,
         idea="one element after the other, by the C library's functions in float64",
         kernel="elementwise.cpu.naive:apply"),
    Rung("cpu.vectors", after="cpu.naive", needs=CPU, chosen=True,
         idea="whole vectors through a polynomial of our own; threads take pieces",
         kernel="elementwise.cpu.vectors:apply"),
    Rung("simt.naive", needs=SIMT,
         idea="one thread per element, by the C library's functions in float64",
         kernel="elementwise.simt.elements:run", options={"kernel": "naive", "block": 256},
         swept={"block": BLOCKS}),
    Rung("simt.vectors", after="simt.naive", needs=SIMT, chosen=True,
         idea="one thread per four elements, in loads and stores of 16 bytes",
         kernel="elementwise.simt.elements:run", options={"kernel": "vectors", "block": 256},
         swept={"block": BLOCKS}),
    Rung("tile.blocks", needs=TILE, chosen=True, c=C_TILE,
         idea="one block of elements per program, through float32 polynomials of our own",
         kernel="elementwise.tile.blocks:run"),
    taught=True,
)
