"""conv_transpose2d's rungs on a GPU: SIMT kernels in numba-cuda (`simt/`), tile kernels in Triton (`tile/`).

run(x, weights, out, epilogue) as on the CPU, with torch tensors in them.
"""

from functools import partial

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import engine, on

PREFER = (
    *("tile.blocks", "tile.boxes", "tile.columns", "tile.phases"),
    *("tile.blocks_limbs", "tile.boxes_limbs", "tile.columns_limbs", "tile.limbs", "simt.phases"),
)
LIMB_DEPTH = 256  # products of an output from which three products of bfloat16 limbs hold the float32 bound
COLUMNS, FEW = 64, 16  # of all phases: up to which they are one product, and up to which that of four positions are
ROUNDED = ("bfloat16", "float16", "tf32")  # accuracy classes that matrix units multiply as they are


def _deep(problem) -> str | None:
    """An output's products, as `spec.bound` counts them."""
    depth = problem.C
    for axis in (problem.rows, problem.columns):
        depth *= -(-axis.K // axis.stride)
    return None if depth >= LIMB_DEPTH else f"an output has {depth} products, it needs {LIMB_DEPTH}"


def _few_columns(most: int):
    def need(problem) -> str | None:
        columns = problem.O * problem.rows.stride * problem.columns.stride
        return None if columns <= most else f"all phases have {columns} columns, it takes up to {most}"

    return need


def _copied(problem) -> str | None:
    """Rows of x that bulk copies take; limbs are padded."""
    unit = {"float32": 1, "tf32": 4}.get(problem.dtype, 8)
    return f"C is {problem.C}, it needs a multiple of {unit}" if problem.C % unit else None


# name, the rung it stands on, what changes
SIMT = (
    ("gather_tested", None, "a thread an output; a test in its loop finds the inputs that reach it"),
    ("gather", "gather_tested", "taps a stride apart: no test is left in the loop"),
    ("coalesced", "gather", "weights turned: a warp's threads read adjacent numbers"),
    ("zero_inserted", "coalesced", "one matmul over x with zeros between its pixels"),
    ("phases", "zero_inserted", "outputs a stride apart are an ordinary convolution: a matmul for each of the phases"),
)

# The constants of their bounds. Matrix units truncate where they add; three products of limbs are off by up to
# 255 eps32 of the sum of |products|, for a half unit of bfloat16 is 2**-8, and LIMBS_C * sqrt(LIMB_DEPTH) are 256.
C, LIMBS_C = 8.0, 16.0

# name, the rung it stands on, what else it needs, what changes; each also in limbs
TILE = (
    ("phases", None, (), "matrix units: all phases in one launch, rows of positions by a load a tap"),
    ("columns", "phases", (_few_columns(COLUMNS),), "few channels: those of all phases are one product's columns"),
    ("boxes", "phases", (_copied,), "bulk copies of boxes of positions; narrow phases side by side are one product"),
    ("blocks", "columns", (_copied, _few_columns(FEW)), "bulk copies; the columns are of 2 x 2 positions at once"),
)
LIMBS = "float32 as two bfloat16 limbs, three products of them; "


def declare(ladder: Ladder) -> None:
    """Add the rungs; nothing is imported before one of them runs."""
    needs = (on("cuda", "float32"), engine("simt"))
    for name, after, idea in SIMT:
        below = None if after is None else f"simt.{after}"
        c = 4.0 if name in ("zero_inserted", "phases") else 1.0
        prepare = None if name.startswith("gather") else _prepare_simt
        ladder.rung(f"simt.{name}", after=below, needs=needs, idea=idea, prepare=prepare, c=c)(partial(_simt, name))
    for name, after, more, idea in TILE:
        below = None if after is None else f"tile.{after}"
        needs = (on("cuda", *ROUNDED), engine("tile"), *more)
        ladder.rung(f"tile.{name}", after=below, needs=needs, idea=idea, prepare=_prepare_tile, c=C)(_tile)
    for name, after, more, idea in TILE:
        below = {None: "tile.phases", "phases": "tile.limbs"}.get(after, f"tile.{after}_limbs")
        needs = (on("cuda", "float32"), engine("tile"), _deep, *more)
        own = "tile.limbs" if after is None else f"tile.{name}_limbs"
        ladder.rung(own, after=below, needs=needs, idea=LIMBS + idea, prepare=_prepare_tile, c=LIMBS_C)(_tile)


def _simt(name: str, x, weights, out, epilogue) -> None:
    from tilewright.ops.conv_transpose2d.simt.launch import convolve

    convolve(name, x, weights, out, epilogue)


def _prepare_simt(weights, rows, columns, rung: str, dtype: str):
    from tilewright.ops.conv_transpose2d.simt.launch import prepare

    return prepare(weights, rows, columns, rung)


def _tile(x, weights, out, epilogue) -> None:
    from tilewright.ops.conv_transpose2d.tile.launch import convolve

    convolve(x, weights, out, epilogue)


def _prepare_tile(weights, rows, columns, rung: str, dtype: str):
    from tilewright.ops.conv_transpose2d.tile.launch import prepare

    return prepare(weights, rows, columns, rung, dtype)
