"""How a warpgroup finishes and writes its 64 rows of a tile on Hopper, in Gluon:

    out[i, j] = activation(sums[i, j] + residual[i, j] + bias[j])

There are three ways. Threads store the result from registers. Or it goes to shared memory and a bulk copy (TMA) writes
it. Or a moving warp, which only copies between global and shared memory, first loads the residual into a buffer; the
result then replaces it there, and the moving warp stores it. The limit is the traffic of out and residual, which has to
hide behind the products of the next tile. Arguments are the records of `records`: extras `Extras`, sizes `Sizes`,
exchange `Exchange`, form `Form`, block `Block`.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language import PropagateNan
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tilewright.ops.gemm import operands
from tilewright.ops.gemm.tile import epilogue, product, records

# Triton functions, compiled again as Gluon
activate, peaks_of = gluon.jit(epilogue.activate.fn), gluon.jit(epilogue.peaks_of.fn)
tile_corner = gluon.jit(product.tile_corner.fn)

copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # the second name in Triton 3.6 and 3.7
copy_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

if not hasattr(gl.shared_memory_descriptor, "_reinterpret"):  # its name up to Triton 3.8, by which kernels call it
    gl.shared_memory_descriptor._reinterpret = gl.shared_memory_descriptor.reinterpret

HALF_ROWS, PEAK = gl.constexpr(records.HALF_ROWS), gl.constexpr(operands.PEAK)
NAN = gl.constexpr(PropagateNan.ALL)


@gluon.jit
def wait_for_inputs():
    """As `early.wait_for_inputs`. Each warp that reads or writes arrays calls it first, except the one that loads
    weights."""
    gdc_launch_dependents()
    gdc_wait()


@gluon.jit
def add_bias(totals, bias, j, N):
    """totals + bias[j : j + width]. bias: pointer (N,), or None."""
    if bias is None:
        return totals
    else:
        columns = j + gl.arange(0, totals.type.shape[1], gl.SliceLayout(0, totals.type.layout))[None, :]
        return totals + gl.load(bias + columns, mask=columns < N, other=0.0).to(gl.float32)


@gluon.jit
def elements(i, j, sizes, stride, tile, LAYOUT: gl.constexpr):
    """(offsets from the start of a matrix, mask of those inside) of the elements of `tile` at (i, j), in LAYOUT.
    stride: elements from a row of the matrix to the next."""
    rows = i + gl.arange(0, tile.type.shape[0], gl.SliceLayout(1, LAYOUT))[:, None]
    columns = j + gl.arange(0, tile.type.shape[1], gl.SliceLayout(0, LAYOUT))[None, :]
    return rows.to(gl.int64) * stride + columns, (rows < sizes.M) & (columns < sizes.N)


@gluon.jit
def finish(totals, i, j, extras, sizes, ACTIVATION: gl.constexpr):
    """activation(totals + residual + bias) of 64 rows at (i, j). totals: float32 (64, BN) in registers."""
    LAYOUT: gl.constexpr = totals.type.layout
    if extras.residual is not None:
        offsets, inside = elements(i, j, sizes, sizes.N, totals, LAYOUT)
        totals += gl.load(extras.residual + offsets, mask=inside, other=0.0).to(gl.float32)
    return activate(add_bias(totals, extras.bias, j, sizes.N), ACTIVATION)


@gluon.jit
def larger(x, y):
    """The larger of two, NaN if one is NaN: one instruction."""
    return gl.maximum(x, y, propagate_nan=NAN)


@gluon.jit
def halves(x):
    """The left and the right half of a tile. The elements stay in their registers."""
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute(0, 2, 1).split()


@gluon.jit
def largest(x, j, N):
    """The largest of each PEAK columns of a tile that starts at column j, NaN if one is not finite. Columns from N on
    do not count."""
    if x.type.shape[1] == PEAK:
        x += x * 0.0  # NaN for an infinity
        if j + PEAK > N:  # only in the last column of tiles
            columns = j + gl.arange(0, PEAK, gl.SliceLayout(0, x.type.layout))[None, :]
            x = gl.where(columns < N, x, float("-inf"))
        return gl.reduce(x, 1, larger).expand_dims(1)
    else:
        left, right = halves(x)
        best = gl.join(largest(left, j, N), largest(right, j + x.type.shape[1] // 2, N))
        return best.permute(0, 2, 1).reshape([x.type.shape[0], x.type.shape[1] // PEAK])


@gluon.jit
def store_peaks(totals, peaks, i, j, sizes):
    """Store the largest of each PEAK columns of 64 rows at (i, j). peaks: see `records.Extras`."""
    GROUPS: gl.constexpr = totals.type.shape[1] // PEAK
    ROW_OF_THREAD: gl.constexpr = gl.BlockedLayout([1, GROUPS], [32, 1], [4, 1], [1, 0])
    best = gl.convert_layout(largest(totals, j, sizes.N), ROW_OF_THREAD)
    rows = i + gl.arange(0, HALF_ROWS, gl.SliceLayout(1, ROW_OF_THREAD))[:, None]
    groups = j // (GROUPS * PEAK) * GROUPS + gl.arange(0, GROUPS, gl.SliceLayout(0, ROW_OF_THREAD))[None, :]
    gl.store(peaks + rows.to(gl.int64) * peaks_of(sizes.N) + groups, best, mask=rows < sizes.M)


@gluon.jit
def write_by_copy(totals, out, buffer, i, j):
    """Write 64 rows to (i, j) of out, a TMA descriptor, by a bulk copy from a buffer, once the last copy is done."""
    tma.store_wait(0)
    buffer.store(totals.to(out.dtype))
    fence_async_shared()
    copy_out(out, [i, j], buffer)


@gluon.jit
def write_by_stores(totals, out, i, j, sizes):
    """Write 64 rows to (i, j) of out, a pointer, from registers. Threads first exchange elements through shared memory,
    so that a warp stores 32 adjacent ones. A whole float32 tile needs too much of it, so 32 columns are exchanged at a
    time."""
    ROWS_OF_WARPS: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    PARTS: gl.constexpr = 1 if out.dtype.element_ty.primitive_bitwidth == 16 else totals.type.shape[1] // 32
    parts = split_columns(totals.to(out.dtype.element_ty), PARTS)
    for p in gl.static_range(PARTS):
        part = gl.convert_layout(parts[p], ROWS_OF_WARPS)
        offsets, inside = elements(i, j + p * part.type.shape[1], sizes, sizes.stride, part, ROWS_OF_WARPS)
        gl.store(out + offsets, part, mask=inside)


@gluon.jit
def split_columns(x, PARTS: gl.constexpr):
    """A tile as a tuple of PARTS, left to right. The elements stay in their registers."""
    if PARTS == 1:
        return (x,)
    else:
        left, right = halves(x)
        return split_columns(left, PARTS // 2) + split_columns(right, PARTS // 2)


@gluon.jit
def finish_in_buffers(totals, exchange, bias, j, N, count, form: gl.constexpr, HALF: gl.constexpr):
    """Finish 64 rows in shared buffers: the moving warp has loaded the residual into them and stores the results.

    A buffer is 128 bytes wide: only its part of the sums needs registers beside those of the totals. count: tiles that
    this program has finished; its parity is the phase of the barriers. HALF: 0 for the upper 64 rows of the tile, 1 for
    the lower.
    """
    ACTIVATION: gl.constexpr = form.activation
    PART: gl.constexpr = exchange.buffers.type.shape[2]
    PARTS: gl.constexpr = totals.type.shape[1] // PART
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PART, 16])
    parts = split_columns(totals, PARTS)
    for p in gl.static_range(PARTS):
        buffer = exchange.buffers.index(HALF * PARTS + p)
        part = gl.convert_layout(parts[p], LAYOUT, assert_trivial=True)
        mbarrier.wait(exchange.loaded.index(HALF * PARTS + p), count & 1)
        part += buffer.load(LAYOUT).to(gl.float32)
        part = activate(add_bias(part, bias, j + p * PART, N), ACTIVATION)
        buffer.store(part.to(buffer.dtype))
        fence_async_shared()
        mbarrier.arrive(exchange.finished.index(HALF * PARTS + p))


@gluon.jit
def move_tiles(out, residual, exchange, sizes, block: gl.constexpr, form: gl.constexpr):
    """The moving warp, if the form has one: load each tile's residual into the buffers once they are empty, then store
    the results."""
    if form.end == "moving_warp":
        PART: gl.constexpr = out.block_type.shape[1]
        PARTS: gl.constexpr = block.BN // PART
        HALVES: gl.constexpr = block.BM // HALF_ROWS
        wait_for_inputs()
        tiles = gl.cdiv(sizes.M, block.BM) * gl.cdiv(sizes.N, block.BN)
        for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
            i, j = tile_corner(tile, sizes.M, sizes.N, block)
            count = tile // gl.num_programs(0)
            tma.store_wait(0)
            for p in gl.static_range(PARTS):
                for half in gl.static_range(HALVES):
                    loaded, buffer = exchange.loaded.index(half * PARTS + p), exchange.buffers.index(half * PARTS + p)
                    mbarrier.expect(loaded, residual.block_type.nbytes)
                    copy_in(residual, [i + half * HALF_ROWS, j + p * PART], loaded, buffer)
            for p in gl.static_range(PARTS):
                for half in gl.static_range(HALVES):
                    mbarrier.wait(exchange.finished.index(half * PARTS + p), count & 1)
                    buffer = exchange.buffers.index(half * PARTS + p)
                    copy_out(out, [i + half * HALF_ROWS, j + p * PART], buffer)
        tma.store_wait(0)
