"""embedding_conv1d's rungs on a GPU: SIMT kernels in numba-cuda (`simt/`), tile kernels in Triton (`tile/`).

prepare(table, filters, options) -> state; run(ids, prepared, out) with torch tensors, ids being places in the token
table for rungs that have one.
"""

from functools import partial
from importlib import import_module

from tilewright.ops.core.ladder import Ladder, preferring
from tilewright.ops.core.needs import engine, on
from tilewright.ops.embedding_conv1d.operands import Filters, Prepared

PREFER = ("tile.gather_add", "simt.gather_add")
CONVOLUTION = "simt.fused"  # the rung of conv1d beneath, unless `using` forces another
DTYPES = ("float32", "bfloat16", "float16")

# name, the rung it stands on, what changes
SIMT = (
    ("table_sums", "gather", "each pair of token and tap is multiplied once; a thread a feature adds table rows"),
    ("quads", "table_sums", "four adjacent features a thread, 16 bytes a load"),
    ("gather_add", "quads", "all blocks work on one slice of the table at a time, so that it stays in L2"),
)
TILE = (
    ("rows", None, "a program a sentence: sums of whole table rows, the running maximum in registers"),
    ("gather_add", "rows", "all programs work on one slice of the table at a time, so that it stays in L2"),
)


def declare(ladder: Ladder) -> None:
    """Add the rungs; nothing is imported before one of them runs. c = 10 is that of matmul's limbs, which make rows."""
    float32 = (on("cuda", "float32"), engine("simt"))
    idea = "look the rows up, then convolve them with conv1d, ReLU and maximum fused"
    ladder.rung("simt.gather", after=None, needs=float32, prepare=_prepare_filters, idea=idea)(_gather)
    for name, after, idea in SIMT:
        prepare = partial(_prepare_table, "simt" if name == "gather_add" else None)
        rung = ladder.rung(f"simt.{name}", after=f"simt.{after}", needs=float32, prepare=prepare, c=10.0, idea=idea)
        rung(partial(_simt, name))
    needs = (on("cuda", *DTYPES), engine("tile"))
    for name, below, idea in TILE:
        prepare = partial(_prepare_table, "tile" if name == "gather_add" else None)
        ladder.rung(f"tile.{name}", after=below and f"tile.{below}", needs=needs, prepare=prepare, c=10.0, idea=idea)(
            _tile
        )


def _prepare_filters(table, filters: Filters, *, dtype: str, length: int, memory: int | None):
    from tilewright.ops.conv1d.device import prepare

    with preferring(conv1d=CONVOLUTION):
        return [prepare(weight, dtype=dtype) for weight in filters.weights]


def _gather(ids, prepared: Prepared, out) -> None:
    from tilewright.ops.conv1d.device import conv1d

    filters, O = prepared.filters, prepared.filters.O
    x = prepared.table[ids.long()].transpose(1, 2)  # (B, C, L)
    with preferring(conv1d=CONVOLUTION):
        for branch, weight in enumerate(prepared.state):
            columns = slice(branch * O, (branch + 1) * O)
            out[:, columns] = conv1d(x, weight, bias=filters.bias[columns], activation="relu", pool="max")


def _prepare_table(cutter: str | None, table, filters: Filters, *, dtype: str, length: int, memory: int | None):
    """cutter: the engine that cuts rows into slices; None: they stay whole."""
    from tilewright.ops.embedding_conv1d.device_table import DeviceTable

    cut = import_module(f"tilewright.ops.embedding_conv1d.{cutter}.gather_add").cut_rows if cutter else None
    return DeviceTable(table, filters, dtype=dtype, length=length, memory=memory, cut=cut)


def _simt(name: str, places, prepared: Prepared, out) -> None:
    from tilewright.ops.embedding_conv1d.simt.gather_add import add_rows

    add_rows(name, places, prepared.state, out)


def _tile(places, prepared: Prepared, out) -> None:
    from tilewright.ops.embedding_conv1d.tile.gather_add import add_rows

    add_rows(places, prepared.state, out)
