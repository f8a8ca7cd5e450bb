"""The rungs of batchnorm, for all engines.

CPU: kernel(x, scale, shift, activation, out), x and out float32 (rows, C) with contiguous rows; out = activation(x *
scale + shift). GPU: kernel(x, channels, eps, activation, out), contiguous tensors, not empty; channels: gamma, beta,
mean and variance (C,). `simt` takes float32, `tile` any of the three dtypes each. out may be x.
"""

from tilewright.ops.batchnorm.problem import DEVICE_DTYPES
from tilewright.ops.core.ladder import BLOCKS, Ladder, Rung
from tilewright.ops.core.needs import divides, engine, on

CPU = (on("cpu", "float32"),)
SIMT = (on("cuda", "float32"), engine("simt"))
TILE = (on("cuda", *DEVICE_DTYPES), engine("tile"))

# fmt: off
ladder = Ladder(
    "batchnorm",
    Rung("cpu.naive", needs=CPU,
         idea="one element after the other",
         kernel="batchnorm.cpu.naive:normalise"),
    Rung("cpu.vectors", after="cpu.naive", needs=CPU, chosen=True,
         idea="whole vectors of channels; threads take rows",
         kernel="batchnorm.cpu.vectors:normalise"),
    Rung("simt.naive", needs=SIMT, chosen=True,
         idea="one thread per element; scale and shift of each channel come from a kernel before",
         kernel="batchnorm.simt.elements:run", options={"kernel": "naive", "block": 256},
         swept={"block": BLOCKS}),
    Rung("simt.vectors", after="simt.naive", needs=(*SIMT, divides("C", 4)), chosen=True,
         idea="one thread per four channels, in loads and stores of 16 bytes",
         kernel="batchnorm.simt.elements:run", options={"kernel": "vectors", "block": 256},
         swept={"block": BLOCKS}),
    Rung("tile.blocks", needs=TILE, chosen=True,
         idea="one block of rows and channels per program, which forms scale and shift itself",
         kernel="batchnorm.tile.blocks:run"),
    taught=True,
)
