"""embedding's rungs on a GPU: SIMT kernels in numba-cuda (`simt/`), tile kernels in Triton (`tile/`).

run(ids, table, places, out): contiguous torch tensors, ids (n,) of int32 or int64, table (V, C), out (n, C), not empty;
places: (positions (n,), position_table (P, C)), or None. SIMT rungs take float32, the others any of the three dtypes.
"""

from functools import partial

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import divides, engine, on
from tilewright.ops.embedding.problem import DEVICE_DTYPES

PREFER = ("tile.rows", "simt.vectors", "simt.warps")

# name, the rung it stands on, what else it needs, what changes
SIMT = (
    ("naive", None, (), "a thread a number of out, and each looks its row's id up"),
    ("warps", "simt.naive", (), "a warp a row: an id is looked up once for 32 numbers at a time"),
    ("vectors", "simt.warps", (divides("C", 4),), "loads and stores of 16 bytes"),
)


def declare(ladder: Ladder) -> None:
    """Add the rungs; nothing is imported before one of them runs."""
    for name, after, more, idea in SIMT:
        needs = (on("cuda", "float32"), engine("simt"), *more)
        ladder.rung(f"simt.{name}", after=after, needs=needs, idea=idea)(partial(_simt, name))
    needs = (on("cuda", *DEVICE_DTYPES), engine("tile"))
    ladder.rung("tile.rows", after=None, needs=needs, idea="a row a program, 16 bytes a load")(_tile)


def _simt(name: str, ids, table, places, out) -> None:
    from tilewright.ops.embedding.simt.rows import run

    run(name, ids, table, places, out)


def _tile(ids, table, places, out) -> None:
    from tilewright.ops.embedding.tile.rows import run

    run(ids, table, places, out)
