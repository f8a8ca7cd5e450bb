"""A thread a feature, then four features a thread: the sum over a window in registers, and the largest of them."""

from numba import cuda, float32, int64

from tilewright.ops.core.gpu.registers import add4, load4
from tilewright.ops.core.gpu.simt import inline, kernel, launch
from tilewright.ops.embedding_conv1d.device_table import DeviceTable
from tilewright.ops.embedding_conv1d.operands import Filters, Prepared

THREADS = 128
ZEROS = (float32(0), float32(0), float32(0), float32(0))


@inline
def larger(best, total):
    """The larger, or the NaN."""
    return best if total <= best or best != best else total


@kernel
def table_sums(kept, places, bias, bounds, out):
    """A thread has one feature of one sentence; rows are whole, so slices is 1.

    A warp reads 128 adjacent bytes of a row, 4 a thread: as many loads as additions.
    """
    column, s = cuda.grid(1), cuda.blockIdx.y
    if column >= out.shape[1]:
        return
    O = out.shape[1] // (bounds.size - 1)
    branch, f = column // O, column % O
    first, K = bounds[branch], bounds[branch + 1] - bounds[branch]
    best = float32(0)
    for position in range(places.shape[1] - K + 1):
        total = bias[column]
        for tap in range(K):
            total += kept[0, places[s, position + tap], first + tap, f]
        best = larger(best, total)
    out[s, column] = best


@inline
def quad_of(bias, branch, O, f):
    """The bias of features f .. f + 3 of a branch, 0 for those beyond O."""
    at = branch * O
    return (
        bias[at + f],
        bias[at + f + 1] if f + 1 < O else float32(0),
        bias[at + f + 2] if f + 2 < O else float32(0),
        bias[at + f + 3] if f + 3 < O else float32(0),
    )


@kernel
def quads(kept, places, bias, bounds, out):
    """A thread has four adjacent features of one sentence, and loads 16 bytes of a row; blockIdx.y is the slice.

    With whole rows a quarter of the loads of `table_sums`. With slices of 128 bytes, blocks side by side read the same
    slice, 16 sentences each, and find most of it in L2. Loses where there are few sentences: a slice for each is
    fetched by itself.
    """
    _, capacity, groups, width = kept.shape
    O = out.shape[1] // (bounds.size - 1)
    share = cuda.grid(1)
    s, within = share // (width // 4), share % (width // 4) * 4
    f = cuda.blockIdx.y * width + within
    if s >= out.shape[0] or f >= O:
        return
    slice_at = int64(cuda.blockIdx.y) * capacity * groups * width + within
    for branch in range(bounds.size - 1):
        first, K = bounds[branch], bounds[branch + 1] - bounds[branch]
        start, best = quad_of(bias, branch, O, f), ZEROS
        for position in range(places.shape[1] - K + 1):
            total = start
            for tap in range(K):
                row = int64(places[s, position + tap]) * groups + first + tap
                total = add4(total, load4(kept, slice_at + row * width))
            best = (
                larger(best[0], total[0]),
                larger(best[1], total[1]),
                larger(best[2], total[2]),
                larger(best[3], total[3]),
            )
        column = branch * O + f
        out[s, column] = best[0]
        if f + 1 < O:
            out[s, column + 1] = best[1]
        if f + 2 < O:
            out[s, column + 2] = best[2]
        if f + 3 < O:
            out[s, column + 3] = best[3]


def cut_rows(rows, places, kept) -> None:
    """Put rows (n, groups, O) at `places` of kept (slices, capacity, groups, width)."""
    n, groups, O = rows.shape
    slices, _, _, width = kept.shape
    padded = rows.new_zeros((n, groups, slices * width))
    padded[:, :, :O] = rows
    kept.index_copy_(1, places, padded.view(n, groups, slices, width).permute(2, 0, 1, 3))


def add_rows(places, prepared: Prepared, out) -> None:
    """out (B, branches * O), float32, from rows of the table, places int32 (B, L)."""
    table = prepared.state
    arrays = (table.kept, places, table.filters.bias, table.bounds, out)
    launch(table_sums, (-(-out.shape[1] // THREADS), len(out)), THREADS, arrays)


def add_quads(places, prepared: Prepared, out) -> None:
    """As `add_rows`, four features per thread."""
    table = prepared.state
    arrays, (slices, _, _, width) = (table.kept, places, table.filters.bias, table.bounds, out), table.kept.shape
    launch(quads, (-(-len(out) * (width // 4) // THREADS), slices), THREADS, arrays)


def prepare_slices(table, filters: Filters, *, dtype: str, length: int, memory: int | None) -> DeviceTable:
    """An empty token table for these weights, whose rows are cut into slices."""
    return DeviceTable(table, filters, dtype=dtype, length=length, memory=memory, cut=cut_rows)
