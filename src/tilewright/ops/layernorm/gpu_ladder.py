"""layernorm's rungs on a GPU: SIMT kernels in numba-cuda (`simt/`), tile kernels in Triton (`tile/`).

run(x, weight, bias, eps, out): contiguous torch tensors, x and out (rows, C), not empty; out may be x. SIMT rungs take
float32, the others any of the three dtypes for each.
"""

from functools import partial

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import at_most, divides, engine, on
from tilewright.ops.layernorm.problem import DEVICE_DTYPES

PREFER = ("tile.registers", "tile.chunks", "simt.vectors", "simt.warps")
WIDEST = 2048  # numbers of a row in a warp's registers: 64 a thread

# name, the rung it stands on, what else it needs, what changes
SIMT = (
    ("naive", None, (), "a thread a row: mean, variance, result"),
    ("shared", "simt.naive", (), "a block a row; its threads' sums meet in shared memory, as a tree"),
    ("shuffles", "simt.shared", (), "the threads of a warp exchange registers in place of shared memory"),
    ("warps", "simt.shuffles", (), "a warp a row: no barrier at all"),
    ("vectors", "simt.warps", (divides("C", 4),), "loads and stores of 16 bytes"),
)


def declare(ladder: Ladder) -> None:
    """Add the rungs; nothing is imported before one of them runs."""
    for name, after, more, idea in SIMT:
        needs = (on("cuda", "float32"), engine("simt"), *more)
        ladder.rung(f"simt.{name}", after=after, needs=needs, idea=idea)(partial(_simt, name))
    needs = (on("cuda", *DEVICE_DTYPES), engine("tile"))
    ladder.rung("tile.chunks", after=None, needs=needs, idea="a chunk of a row at a time, three passes")(_chunks)
    needs, idea = (*needs, at_most("C", WIDEST)), "whole rows in registers: read once"
    ladder.rung("tile.registers", after="tile.chunks", needs=needs, idea=idea)(_registers)


def _simt(name: str, x, weight, bias, eps: float, out) -> None:
    from tilewright.ops.layernorm.simt.rows import run

    run(name, x, weight, bias, eps, out)


def _chunks(x, weight, bias, eps: float, out) -> None:
    from tilewright.ops.layernorm.tile.chunks import run

    run(x, weight, bias, eps, out)


def _registers(x, weight, bias, eps: float, out) -> None:
    from tilewright.ops.layernorm.tile.registers import run

    run(x, weight, bias, eps, out)
