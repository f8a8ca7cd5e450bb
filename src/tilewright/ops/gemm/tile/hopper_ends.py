"""The four ends of half a tile of sums on Hopper, in Gluon.

Threads store the tile, or a bulk copy does. A moving warp loads the residual and stores the tile. Or only the largest
sum of each row is kept.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language import PropagateNan

from tilewright.ops.gemm.tile import epilogue as in_triton
from tilewright.ops.gemm.tile import product

activate, place = gluon.jit(in_triton.activate.fn), gluon.jit(product.place.fn)

HALF = gl.constexpr(64)  # rows of a tile that a warpgroup computes: those of one of its instructions
NAN = gl.constexpr(PropagateNan.ALL)


@gluon.jit
def add_bias(totals, bias, j, N):
    """totals + bias of columns j and on."""
    if bias is None:
        return totals
    else:
        columns = j + gl.arange(0, totals.type.shape[1], gl.SliceLayout(0, totals.type.layout))[None, :]
        return totals + gl.load(bias + columns, mask=columns < N, other=0.0).to(gl.float32)


@gluon.jit
def elements(i, j, shape, ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """(offset in out, whether it is inside) of the elements of a tile at (i, j), in a layout."""
    M, N = shape
    rows = i + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))[:, None]
    columns = j + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))[None, :]
    return rows.to(gl.int64) * N + columns, (rows < M) & (columns < N)


@gluon.jit
def write(totals, out, room, i, j, extras, shape, form: gl.constexpr):
    """Finish half a tile of sums and store it at (i, j): by a bulk copy from the buffer `room`, or from registers.

    Before a store from registers, threads exchange 16-bit elements: those of a warp are then adjacent.
    """
    bias, residual = extras
    _, N = shape
    ACTIVATION: gl.constexpr = form.activation
    LAYOUT: gl.constexpr = totals.type.layout
    ROWS: gl.constexpr = totals.type.shape[0]
    COLUMNS: gl.constexpr = totals.type.shape[1]
    at, inside = elements(i, j, shape, ROWS, COLUMNS, LAYOUT)
    if residual is not None:
        totals += gl.load(residual + at, mask=inside, other=0.0).to(gl.float32)
    totals = activate(add_bias(totals, bias, j, N), ACTIVATION)
    if form.end == "bulk":
        tma.store_wait(0)
        room.store(totals.to(out.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out, [i, j], room)
    elif out.dtype.element_ty.primitive_bitwidth == 16:
        BESIDE: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
        at, inside = elements(i, j, shape, ROWS, COLUMNS, BESIDE)
        gl.store(out + at, gl.convert_layout(totals.to(out.dtype.element_ty), BESIDE), mask=inside)
    else:
        gl.store(out + at, totals, mask=inside)


@gluon.jit
def split_columns(x, PARTS: gl.constexpr):
    """A tile as a tuple of PARTS, left to right. Each thread keeps its registers; no data moves."""
    if PARTS == 1:
        return (x,)
    else:
        left, right = x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute(0, 2, 1).split()
        return split_columns(left, PARTS // 2) + split_columns(right, PARTS // 2)


@gluon.jit
def write_moved(totals, out, moves, bias, tile, form: gl.constexpr, WHICH: gl.constexpr):
    """Finish half a tile of sums in shared buffers. The moving warp loads the residual there and stores the results.

    A buffer is 128 bytes wide, so few sums at a time need more registers. tile: how many tiles this program has done,
    the tile's first column, and N.
    """
    rooms, come, done = moves
    turn, j, N = tile
    ACTIVATION: gl.constexpr = form.activation
    PART: gl.constexpr = out.block_type.shape[1]
    PARTS: gl.constexpr = totals.type.shape[1] // PART
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PART, 16])
    parts = split_columns(totals, PARTS)
    for p in gl.static_range(PARTS):
        at = WHICH * PARTS + p
        part = gl.convert_layout(parts[p], LAYOUT, assert_trivial=True)
        mbarrier.wait(come.index(at), turn & 1)
        part += rooms.index(at).load(LAYOUT).to(gl.float32)
        part = activate(add_bias(part, bias, j + p * PART, N), ACTIVATION)
        rooms.index(at).store(part.to(out.dtype))
        fence_async_shared()
        mbarrier.arrive(done.index(at))


@gluon.jit
def move(out, residual, moves, shape, block: gl.constexpr):
    """The moving warp: load each tile's residual into the buffers once they are empty, then store the results."""
    rooms, come, done = moves
    M, N, _ = shape
    BM: gl.constexpr = block.BM
    BN: gl.constexpr = block.BN
    PART: gl.constexpr = out.block_type.shape[1]
    PARTS: gl.constexpr = BN // PART
    for tile in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        i, j = place(tile, M, N, block)
        turn = tile // gl.num_programs(0)
        tma.store_wait(0)
        for p in gl.static_range(PARTS):
            for half in gl.static_range(2):
                at = half * PARTS + p
                mbarrier.expect(come.index(at), residual.block_type.nbytes)
                where = [i + half * HALF, j + p * PART]
                tma.async_copy_global_to_shared(residual, where, come.index(at), rooms.index(at))
        for p in gl.static_range(PARTS):
            for half in gl.static_range(2):
                at = half * PARTS + p
                mbarrier.wait(done.index(at), turn & 1)
                tma.async_copy_shared_to_global(out, [i + half * HALF, j + p * PART], rooms.index(at))
    tma.store_wait(0)


@gluon.jit
def larger(x, y):
    """The larger of two, NaN if one is: one instruction."""
    return gl.maximum(x, y, propagate_nan=NAN)


@gluon.jit
def keep_best(totals, out, i, j, shape):
    """out = (values, columns), each (tiles across, M): the largest sum of each row of a tile at (i, j), and its first
    column; see `matmul_argmax.tile.best.keep_best`. Only the last column of tiles has sums to ignore."""
    values, columns = out
    M, N = shape
    LAYOUT: gl.constexpr = totals.type.layout
    ROWS: gl.constexpr = totals.type.shape[0]
    COLUMNS: gl.constexpr = totals.type.shape[1]
    across = j + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))[None, :]
    if j + COLUMNS > N:
        totals = gl.where(across < N, totals, float("-inf"))
    best = gl.reduce(totals, 1, larger)
    first = gl.min(gl.where(totals < best[:, None], N - 1, across), 1)
    rows = i + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    at = (j // COLUMNS).to(gl.int64) * M + rows
    gl.store(values + at, best, mask=rows < M)
    gl.store(columns + at, first, mask=rows < M)
