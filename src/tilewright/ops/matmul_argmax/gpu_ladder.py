"""matmul_argmax's rungs on a GPU: SIMT kernels in numba-cuda (`simt/`), tile kernels in Triton and Gluon (`tile/`).

run(a, prepared, index, value) as on the CPU, with torch tensors in them; a is contiguous and of a dtype matmul takes.
"""

from functools import partial

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import engine, hopper, on

PREFER = ("tile.specialized_limbs", "tile.fused_limbs", "tile.specialized", "tile.fused", "simt.shuffles", "simt.row")
ROUNDED = ("bfloat16", "float16", "tf32")
EVERY = ("float32", *ROUNDED)
TRUNCATED = 0.8  # constant of the bound where matrix units add: matmul's 8, in units of its 10 for limbs
LIMBS = 1.0

# name, the rung it stands on, what changes
SIMT = (
    ("row", None, "matmul's product is written, and a thread looks through a row of it"),
    (
        "shuffles",
        "row",
        "a warp looks through a row, 32 adjacent products at a time; its threads' best meet by shuffles",
    ),
)
# name, the rung it stands on, accuracy classes, what else it needs, constant of its bound, what changes
TILE = (
    ("fused", None, ROUNDED, (), TRUNCATED, "a tile of products leaves the best of each row, and is never written"),
    ("specialized", "fused", ROUNDED, (hopper,), TRUNCATED, "one warp copies tiles in, two warpgroups multiply them"),
    (
        "fused_limbs",
        None,
        ("float32",),
        (),
        LIMBS,
        "a tile of sums of three bfloat16 limb products leaves the best of each row, and is never written",
    ),
    ("specialized_limbs", "fused_limbs", ("float32",), (hopper,), LIMBS, "one warp copies limbs in, two multiply"),
)


def in_tiles(problem) -> str | None:
    """The weights lie as tile kernels want them; those of float32, in limbs."""
    if problem.layout.startswith("tile."):
        return None
    return f"the weights are laid out for matmul's {problem.layout}"


def declare(ladder: Ladder) -> None:
    """Add the rungs; nothing is imported before one of them runs."""
    for name, after, idea in SIMT:
        needs = (on("cuda", *EVERY), engine("simt"))
        below = None if after is None else f"simt.{after}"
        ladder.rung(f"simt.{name}", after=below, needs=needs, idea=idea, c=LIMBS)(partial(_simt, name))
    for name, after, dtypes, more, c, idea in TILE:
        needs = (on("cuda", *dtypes), engine("tile"), in_tiles, *more)
        below = None if after is None else f"tile.{after}"
        ladder.rung(f"tile.{name}", after=below, needs=needs, idea=idea, c=c)(partial(_tile, name))


def _simt(name: str, a, prepared, index, value) -> None:
    from tilewright.ops.matmul_argmax.simt.launch import search

    search(name, a, prepared, index, value)


def _tile(name: str, a, prepared, index, value) -> None:
    from tilewright.ops.matmul_argmax.tile.launch import search

    search(name, a, prepared, index, value)
