"""batchnorm's rungs on a GPU: SIMT kernels in numba-cuda (`simt/`), tile kernels in Triton (`tile/`).

run(x, channels, eps, activation, out): contiguous torch tensors, x and out (rows, C), not empty; channels: gamma, beta,
mean and variance (C,); out may be x. SIMT rungs take float32, the others any of the three dtypes for each.
"""

from functools import partial

from tilewright.ops.batchnorm.problem import DEVICE_DTYPES
from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import divides, engine, on

PREFER = ("tile.blocks", "simt.vectors", "simt.naive")

# name, the rung it stands on, what else it needs, what changes
SIMT = (
    ("naive", None, (), "a thread a number; scale and shift of each channel come from a kernel before"),
    ("vectors", "simt.naive", (divides("C", 4),), "a thread four channels, in loads and stores of 16 bytes"),
)


def declare(ladder: Ladder) -> None:
    """Add the rungs; nothing is imported before one of them runs."""
    for name, after, more, idea in SIMT:
        needs = (on("cuda", "float32"), engine("simt"), *more)
        ladder.rung(f"simt.{name}", after=after, needs=needs, idea=idea)(partial(_simt, name))
    needs = (on("cuda", *DEVICE_DTYPES), engine("tile"))
    idea = "a block of rows and channels a program, which forms scale and shift itself"
    ladder.rung("tile.blocks", after=None, needs=needs, idea=idea)(_tile)


def _simt(name: str, x, channels, eps: float, activation, out) -> None:
    from tilewright.ops.batchnorm.simt.numbers import run

    run(name, x, channels, eps, activation, out)


def _tile(x, channels, eps: float, activation, out) -> None:
    from tilewright.ops.batchnorm.tile.blocks import run

    run(x, channels, eps, activation, out)
