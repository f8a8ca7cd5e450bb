"""The elementwise functions' rungs on a GPU: SIMT kernels in numba-cuda (`simt/`), tile kernels in Triton (`tile/`).

run(function, x, out): a name of `reference.FUNCTIONS`, contiguous torch tensors of one size; out may be x. SIMT rungs
take float32, the others any of the three dtypes on either side.
"""

from functools import partial

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import engine, on
from tilewright.ops.elementwise.problem import DEVICE_DTYPES

PREFER = ("tile.blocks", "simt.vectors")

# name, the rung it stands on, what changes
SIMT = (
    ("naive", None, "a thread a number, by the C library's functions in float64"),
    ("vectors", "simt.naive", "a thread four numbers, in loads and stores of 16 bytes"),
)
C_TILE = 2.0  # of its bound: the GPU's division errs by 2 ULP, the CPU's not at all; 1.0 was measured on an H200


def declare(ladder: Ladder) -> None:
    """Add the rungs; nothing is imported before one of them runs."""
    for name, after, idea in SIMT:
        needs = (on("cuda", "float32"), engine("simt"))
        ladder.rung(f"simt.{name}", after=after, needs=needs, idea=idea)(partial(_simt, name))
    needs = (on("cuda", *DEVICE_DTYPES), engine("tile"))
    idea = "a block of numbers a program, through float32 polynomials of our own"
    ladder.rung("tile.blocks", after=None, needs=needs, c=C_TILE, idea=idea)(_tile)


def _simt(name: str, function: str, x, out) -> None:
    from tilewright.ops.elementwise.simt.numbers import run

    run(name, function, x, out)


def _tile(function: str, x, out) -> None:
    from tilewright.ops.elementwise.tile.blocks import run

    run(function, x, out)
