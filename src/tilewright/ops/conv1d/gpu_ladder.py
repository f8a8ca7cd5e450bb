"""conv1d's rungs on a GPU: SIMT kernels in numba-cuda (`simt/`), and matmul's tile kernels on a matrix of windows.

run(x, weights, out, window, epilogue) as on the CPU, with torch tensors in them: x (B, C, L), out contiguous
(B, O, positions), or (B, O, 1) with pooling.
"""

from functools import partial

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import engine, on

PREFER = ("tile.limbs", "simt.fused", "tile.matmul")
LIMB_DEPTH = 768  # C * K from which matmul's limbs are three products, not four; shorter sums take `simt.fused`

# name, the rung it stands on, what changes
SIMT = (
    ("naive", None, "a thread an output; its sum stays in a register"),
    (
        "tiles",
        "naive",
        "a tile of channels and taps in shared memory, of the filters and of x, 16 x 16 outputs a block",
    ),
    ("registers", "tiles", "a thread has 16 positions, of one sentence or several: a weight in a register serves them"),
    ("fused", "registers", "ReLU and the maximum over positions where the sums are: they are never written"),
)


def declare(ladder: Ladder) -> None:
    """Add the rungs; nothing is imported before one of them runs."""
    for name, after, idea in SIMT:
        needs = (on("cuda", "float32"), engine("simt"))
        below = None if after is None else f"simt.{after}"
        ladder.rung(f"simt.{name}", after=below, needs=needs, idea=idea)(partial(_simt, name))
    rounded = (on("cuda", "bfloat16", "float16", "tf32"), engine("tile"))
    idea = "the matrix of windows, in pieces, by matmul on matrix units"
    ladder.rung("tile.matmul", after=None, needs=rounded, prepare=_pack_matrix, c=8.0, idea=idea)(_tile)
    exact = (on("cuda", "float32"), engine("tile"), _deep)
    idea = "the matrix of windows, in pieces, by matmul of float32 as two bfloat16 limbs on matrix units"
    ladder.rung("tile.limbs", after="tile.matmul", needs=exact, prepare=_pack_matrix, c=10.0, idea=idea)(_tile)


def _deep(problem) -> str | None:
    """The sums are so long that three products of limbs hold the float32 bound."""
    depth = problem.C * problem.K
    return None if depth >= LIMB_DEPTH else f"C * K is {depth}, it needs {LIMB_DEPTH}"


def _simt(name: str, x, weights, out, window, epilogue) -> None:
    from tilewright.ops.conv1d.simt.launch import convolve

    convolve(name, x, weights, out, window, epilogue)


def _pack_matrix(weight, rung: str, dtype: str):
    from tilewright.ops.conv1d.tile.windows import pack_matrix

    return pack_matrix(weight, rung, dtype)


def _tile(x, weights, out, window, epilogue) -> None:
    from tilewright.ops.conv1d.tile.windows import convolve

    convolve(x, weights, out, window, epilogue)
