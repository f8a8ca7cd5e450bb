"""The rungs of batchnorm, for all engines.

CPU: kernel(x, scale, shift, activation, out), x and out float32 (rows, C) with contiguous rows; out = activation(x *
scale + shift). GPU: kernel(x, channels, eps, activation, out), contiguous tensors, not empty; channels: gamma, beta,
mean and variance (C,). `simt` takes float32, `tile` any of the three dtypes each. out may be x.
"""

from tilewright.ops.batchnorm.problem import DEVICE_DTYPES
from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import divides, engine, on

CPU = (on("cpu", "float32"),)
SIMT = (on("cuda", "float32"), engine("simt"))
TILE = (on("cuda", *DEVICE_DTYPES), engine("tile"))

ladder = Ladder(
    "batchnorm",
    Rung(
        "cpu.naive",
        idea="one element after the other",
        needs=CPU,
        kernel="batchnorm.cpu.naive:normalise",
    ),
    Rung(
        "cpu.vectors",
        after="cpu.naive",
        idea="whole vectors of channels; threads draw rows",
        needs=CPU,
        kernel="batchnorm.cpu.vectors:normalise",
        chosen=True,
    ),
    Rung(
        "simt.naive",
        idea="one thread per element; scale and shift of each channel come from a kernel before",
        needs=SIMT,
        kernel="batchnorm.simt.numbers:run",
        options={"kernel": "naive"},
        chosen=True,
    ),
    Rung(
        "simt.vectors",
        after="simt.naive",
        idea="one thread per four channels, in loads and stores of 16 bytes",
        needs=(*SIMT, divides("C", 4)),
        kernel="batchnorm.simt.numbers:run",
        options={"kernel": "vectors"},
        chosen=True,
    ),
    Rung(
        "tile.blocks",
        idea="one block of rows and channels per program, which forms scale and shift itself",
        needs=TILE,
        kernel="batchnorm.tile.blocks:run",
        chosen=True,
    ),
    taught=True,
)
