"""softmax's rungs on a GPU: SIMT kernels in numba-cuda (`simt/`), tile kernels in Triton (`tile/`).

run(x, out): contiguous torch tensors (rows, C), not empty; out may be x. SIMT rungs take float32, the others any of the
three dtypes on either side.
"""

from functools import partial

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import at_most, divides, engine, on
from tilewright.ops.softmax.problem import DEVICE_DTYPES

PREFER = ("tile.registers", "tile.online", "simt.vectors", "simt.warps")
WIDEST = 16384  # numbers of a row in registers: 32 a thread of 16 warps

# name, the rung it stands on, what else it needs, what changes
SIMT = (
    ("naive", None, (), "a thread a row: largest, exp and sum, division"),
    ("shared", "simt.naive", (), "a block a row; its threads' results meet in shared memory, as a tree"),
    ("shuffles", "simt.shared", (), "the threads of a warp exchange registers in place of shared memory"),
    ("warps", "simt.shuffles", (), "a warp a row: no barrier at all"),
    ("vectors", "simt.warps", (divides("C", 4),), "loads and stores of 16 bytes"),
    ("online", "simt.shuffles", (), "largest and sum in one pass, the sum rescaled as the largest grows"),
)


def declare(ladder: Ladder) -> None:
    """Add the rungs; nothing is imported before one of them runs."""
    for name, after, more, idea in SIMT:
        needs = (on("cuda", "float32"), engine("simt"), *more)
        ladder.rung(f"simt.{name}", after=after, needs=needs, idea=idea)(partial(_simt, name))
    needs = (on("cuda", *DEVICE_DTYPES), engine("tile"))
    idea = "a chunk of a row at a time: largest and sum in one pass, the shares in a second"
    ladder.rung("tile.online", after=None, needs=needs, idea=idea)(_online)
    needs, idea = (*needs, at_most("C", WIDEST)), "whole rows in registers: read once"
    ladder.rung("tile.registers", after="tile.online", needs=needs, idea=idea)(_registers)


def _simt(name: str, x, out) -> None:
    from tilewright.ops.softmax.simt.rows import run

    run(name, x, out)


def _online(x, out) -> None:
    from tilewright.ops.softmax.tile.online import run

    run(x, out)


def _registers(x, out) -> None:
    from tilewright.ops.softmax.tile.registers import run

    run(x, out)
