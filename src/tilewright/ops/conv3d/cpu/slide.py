"""The step of every vector rung: the taps (elements of the filter) of a column stay in registers, and each loaded
vector feeds all of them.

    block[i] += sum over b of w[b] * x[i + b]       i < rows, b < taps; x[i] is a vector of `lanes` elements of row i

A block holds one vector of each of `rows` neighbouring rows of outputs. Row j of the input goes to output row j - b
with tap b. So rows + taps - 1 loads serve rows * taps multiply-adds, and each tap is loaded once for all rows.
"""

from numba import types
from numba.core import cgutils

from tilewright.hardware import cpu
from tilewright.simd.instruction import Registers, instruction, offset_by
from tilewright.simd.types import I32, I64, broadcast_lane, lanewise
from tilewright.simd.vectors import load_vector, store_some, store_vector

SIZE = types.intp
# lanes of the CPU: taps in registers at once, beside 16 sums of 32 registers, or 8 of 16
GROUP = {16: 8, 8: 4, 4: 4}
# likewise: tap counts with kernels of their own; 2, 4 and 8 are single groups already, and others are rare
COMPILED_TAPS = {16: (3, 5, 7), 8: (3, 5, 7), 4: (3, 5)}


def _slide(builder, block: Registers, taps: int, first_tap, row, after) -> Registers:
    """Append the code for `taps` taps, from LLVM pointer `first_tap`, and rows of input from pointer `row`.

    after(row, count): the pointer to the row `count` rows after that one.
    """
    scalars = [builder.load(offset_by(builder, first_tap, b), align=4) for b in range(taps)]
    weights = [broadcast_lane(builder, scalar, block.lanes) for scalar in scalars]
    for j in range(block.rows + taps - 1):
        vector = load_vector(builder, row, block.lanes)
        for b in range(max(0, j - block.rows + 1), min(taps, j + 1)):
            block[j - b, 0] = lanewise(builder, "fma", weights[b], vector, block[j - b, 0])
        row = after(row, 1)
    return block


def _next_row(builder, stride):
    """The function `after` of `_slide` for rows that are `stride` elements apart."""
    return lambda row, count: builder.gep(row, [stride if count == 1 else builder.mul(stride, I64(count))])


def _signature(block, taps, w, w_at, x, x_at, stride):
    taps = taps if isinstance(taps, types.IntegerLiteral) else SIZE
    return block(block, taps, w, SIZE, x, SIZE, SIZE)


@instruction(_signature)
def block_slide(builder, block, taps, w, w_at, x, x_at, stride):
    """Row i of block += sum over b of w.flat[w_at + b] * x.flat[x_at + (i + b) * stride : + lanes], b = 0 .. taps - 1.

    A block has one vector per row. If `taps` is a compile-time constant, the sum is unrolled. Otherwise taps are added
    in groups of 8, or of 4 where registers are few, then 4, 2 and 1. The loop over groups is part of the instruction:
    in a loop of Numba's the block would pass through memory.
    """
    after = _next_row(builder, stride)
    if isinstance(taps, int):
        return _slide(builder, block, taps, w.at(w_at), x.at(x_at), after)
    return _slide_groups(builder, block, taps, w.at(w_at), x.at(x_at), after)


@instruction(lambda block, taps, w, w_at, x, x_at, stride: block(block, SIZE, w, SIZE, x, SIZE, SIZE))
def block_slide_ring(builder, block, taps, w, w_at, x, x_at, stride):
    """As `block_slide`, for rows in a ring at the start of x, as many as are read: the first one follows the last."""
    ring = builder.mul(stride, builder.add(taps, I64(block.rows - 1)))
    end, back = builder.ptrtoint(x.at(ring), I64), builder.neg(ring)
    straight = _next_row(builder, stride)

    def after(row, count):
        row = straight(row, count)
        past = builder.icmp_unsigned(">=", builder.ptrtoint(row, I64), end)
        return builder.select(past, builder.gep(row, [back]), row)

    return _slide_groups(builder, block, taps, w.at(w_at), x.at(x_at), after)


@instruction(lambda block, taps, w, w_at, x, x_at, stride: block(block, SIZE, w, SIZE, x, SIZE, SIZE))
def block_along(builder, block, taps, w, w_at, x, x_at, stride):
    """Row i of block += sum over t of w.flat[w_at + t] * x.flat[x_at + i * stride + t : + lanes], t = 0 .. taps - 1."""
    sums = {at: cgutils.alloca_once_value(builder, block[at]) for at in block.positions}
    first_tap, start = w.at(w_at), x.at(x_at)
    rows = [builder.gep(start, [builder.mul(stride, I64(i))]) for i in range(block.rows)]
    with cgutils.for_range(builder, taps) as loop:
        tap = broadcast_lane(builder, builder.load(builder.gep(first_tap, [loop.index]), align=4), block.lanes)
        for i, _ in block.positions:
            vector = load_vector(builder, builder.gep(rows[i], [loop.index]), block.lanes)
            total = lanewise(builder, "fma", tap, vector, builder.load(sums[i, 0]))
            builder.store(total, sums[i, 0])
    for at in block.positions:
        block[at] = builder.load(sums[at])
    return block


def _slide_groups(builder, block: Registers, taps, first_tap, first_row, after) -> Registers:
    """As `_slide` for a number of taps that is known at run time."""
    group = GROUP[cpu().lanes]
    sums = {at: cgutils.alloca_once_value(builder, block[at]) for at in block.positions}
    next_tap, next_row = (cgutils.alloca_once_value(builder, start) for start in (first_tap, first_row))

    def step(count: int) -> None:
        tap, row = builder.load(next_tap), builder.load(next_row)
        for at in block.positions:
            block[at] = builder.load(sums[at])
        _slide(builder, block, count, tap, row, after)
        for at in block.positions:
            builder.store(block[at], sums[at])
        builder.store(offset_by(builder, tap, count), next_tap)
        builder.store(after(row, count), next_row)

    with cgutils.for_range(builder, builder.sdiv(taps, I64(group))):
        step(group)
    for bit in (4, 2, 1):
        if bit < group:
            with builder.if_then(builder.icmp_signed("!=", builder.and_(taps, I64(bit)), I64(0))):
                step(bit)
    for at in block.positions:
        block[at] = builder.load(sums[at])
    return block


@instruction(
    lambda block, out, at, stride, rows, columns, stream: types.void(block, out, SIZE, SIZE, SIZE, SIZE, types.boolean)
)
def block_write(builder, block, out, at, stride, rows, columns, stream):
    """Store the block's first `rows` rows and `columns` columns; row i goes to out.flat[at + i * stride :].

    stream: use stores that bypass the caches, for whole blocks. Each row must start at a multiple of the vector.
    """
    start = out.at(at)
    targets = [(block[i, 0], builder.gep(start, [builder.mul(stride, I64(i))])) for i in range(block.rows)]
    whole = builder.icmp_signed(">=", rows, I64(block.rows))
    whole = builder.and_(whole, builder.icmp_signed(">=", columns, I64(block.lanes)))
    with builder.if_else(whole, likely=True) as (then, otherwise):
        with then, builder.if_else(stream) as (bypass, cached):
            with bypass:
                marked = builder.module.add_metadata([I32(1)])
                for vector, target in targets:
                    target = builder.bitcast(target, vector.type.as_pointer())
                    builder.store(vector, target, align=4 * block.lanes).set_metadata("nontemporal", marked)
            with cached:
                for vector, target in targets:
                    store_vector(builder, vector, target)
        with otherwise:
            for i, (vector, target) in enumerate(targets):
                inside = builder.icmp_signed("<", I64(i), rows)
                store_some(builder, vector, target, builder.select(inside, columns, I64(0)))


@instruction(lambda: types.void())
def fence(builder):
    """Order all earlier stores, streamed ones included, before all later ones."""
    builder.fence("seq_cst")
