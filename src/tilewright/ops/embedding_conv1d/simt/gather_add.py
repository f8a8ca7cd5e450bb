"""One thread per feature, or per four features: the sum over a window, and the maximum over positions, in registers.

out[s, branch * O + f] = relu(max over positions p of bias[f] + sum over taps t of row(t, slots[s, p + t])[f]). The
limit is loads of rows, each element used once.
"""

from numba import cuda, float32, int64

from tilewright.ops.conv1d.simt.naive import larger
from tilewright.ops.core.gpu.registers import add4, load4
from tilewright.ops.core.gpu.simt import inline, kernel, launch
from tilewright.ops.embedding_conv1d.device_table import DeviceTable
from tilewright.ops.embedding_conv1d.operands import Filters, Prepared

THREADS = 128
ZEROS = (float32(0), float32(0), float32(0), float32(0))


@kernel
def table_sums(cache, slots, bias, bounds, out):
    """One thread per feature of a sentence. Rows are whole, so slices is 1.

    A warp loads 128 adjacent bytes of a row, 4 per thread: as many loads as additions.
    """
    column, s = cuda.grid(1), cuda.blockIdx.y
    if column >= out.shape[1]:
        return
    O = out.shape[1] // (bounds.size - 1)
    branch, f = column // O, column % O
    first, K = bounds[branch], bounds[branch + 1] - bounds[branch]
    best = float32(0)
    for position in range(slots.shape[1] - K + 1):
        total = bias[column]
        for tap in range(K):
            total += cache[0, slots[s, position + tap], first + tap, f]
        best = larger(best, total)
    out[s, column] = best


@inline
def quad_of(bias, branch, O, f):
    """The bias of features f to f + 3 of a branch, 0 beyond O."""
    at = branch * O
    return (
        bias[at + f],
        bias[at + f + 1] if f + 1 < O else float32(0),
        bias[at + f + 2] if f + 2 < O else float32(0),
        bias[at + f + 3] if f + 3 < O else float32(0),
    )


@kernel
def quads(cache, slots, bias, bounds, out):
    """One thread per four adjacent features of a sentence, 16 bytes per load; blockIdx.y is the slice.

    With whole rows it has a quarter of the loads of `table_sums`. With slices of 128 bytes, adjacent blocks, 16
    sentences each, read the same slice, and most of it is in L2. It is slow for few sentences: a slice is not reused.
    """
    _, capacity, groups, width = cache.shape
    O = out.shape[1] // (bounds.size - 1)
    thread = cuda.grid(1)
    s, within = thread // (width // 4), thread % (width // 4) * 4
    f = cuda.blockIdx.y * width + within
    if s >= out.shape[0] or f >= O:
        return
    slice_at = int64(cuda.blockIdx.y) * capacity * groups * width + within
    for branch in range(bounds.size - 1):
        first, K = bounds[branch], bounds[branch + 1] - bounds[branch]
        start, best = quad_of(bias, branch, O, f), ZEROS
        for position in range(slots.shape[1] - K + 1):
            total = start
            for tap in range(K):
                row = int64(slots[s, position + tap]) * groups + first + tap
                total = add4(total, load4(cache, slice_at + row * width))
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


def cut_rows(rows, slots, cache) -> None:
    """Copy rows (n, groups, O) to `slots` of cache (slices, capacity, groups, width)."""
    n, groups, O = rows.shape
    slices, _, _, width = cache.shape
    padded = rows.new_zeros((n, groups, slices * width))
    padded[:, :, :O] = rows
    cache.index_copy_(1, slots, padded.view(n, groups, slices, width).permute(2, 0, 1, 3))


def add_rows(slots, prepared: Prepared, out) -> None:
    """out (B, branches * O), float32, from slots int32 (B, L) of the table."""
    table = prepared.state
    arrays = (table.cache, slots, table.filters.bias, table.bounds, out)
    launch(table_sums, (-(-out.shape[1] // THREADS), len(out)), THREADS, arrays)


def add_quads(slots, prepared: Prepared, out) -> None:
    """As `add_rows`, four features per thread."""
    table = prepared.state
    arrays, (slices, _, _, width) = (table.cache, slots, table.filters.bias, table.bounds, out), table.cache.shape
    launch(quads, (-(-len(out) * (width // 4) // THREADS), slices), THREADS, arrays)


def prepare_slices(table, filters: Filters, *, dtype: str, length: int, memory: int | None) -> DeviceTable:
    """An empty token table for these weights, whose rows are cut into slices."""
    return DeviceTable(table, filters, dtype=dtype, length=length, memory=memory, cut=cut_rows)
