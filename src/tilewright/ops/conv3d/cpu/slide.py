"""The step of every vector rung: the taps (elements of the filter) of a column stay in registers, and each loaded
vector feeds all of them.

    block[i] += sum over b of w[b] * x[i + b]       i < rows, b < taps; x[i] is a vector of `lanes` elements of row i

A block holds one vector of each of `rows` neighbouring rows of outputs. Row j of the input goes to output row j - b
with tap b. So rows + taps - 1 loads serve rows * taps multiply-adds, and each tap is loaded once for all rows.
"""

from collections.abc import Callable
from typing import NamedTuple

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


class Rows(NamedTuple):
    """Where rows of input are, as functions of LLVM values. A position is what both functions agree on.

    after(position, count): the position `count` rows further on. pointer(position): to the row's first element.
    """

    after: Callable
    pointer: Callable


def _apart(builder, stride) -> Rows:
    """Rows that are `stride` elements apart. A position is a pointer."""
    return Rows(
        lambda row, count: builder.gep(row, [stride if count == 1 else builder.mul(stride, I64(count))]),
        lambda row: row,
    )


def _listed(builder, start) -> Rows:
    """Rows at the offsets from pointer `start` that are listed in memory. A position is a pointer to an offset."""
    return Rows(
        lambda entry, count: builder.gep(entry, [I64(count)]),
        lambda entry: builder.gep(start, [builder.load(entry)]),
    )


def _slide(builder, block: Registers, taps: int, first_tap, row, rows: Rows) -> Registers:
    """Append the code for `taps` taps, from LLVM pointer `first_tap`, and rows of input from position `row`."""
    scalars = [builder.load(offset_by(builder, first_tap, b), align=4) for b in range(taps)]
    weights = [broadcast_lane(builder, scalar, block.lanes) for scalar in scalars]
    for j in range(block.rows + taps - 1):
        vector = load_vector(builder, rows.pointer(row), block.lanes)
        for b in range(max(0, j - block.rows + 1), min(taps, j + 1)):
            block[j - b, 0] = lanewise(builder, "fma", weights[b], vector, block[j - b, 0])
        row = rows.after(row, 1)
    return block


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
    step = _slide if isinstance(taps, int) else _slide_groups
    return step(builder, block, taps, w.at(w_at), x.at(x_at), _apart(builder, stride))


@instruction(lambda block, taps, w, x, x_at, offsets, at: block(block, SIZE, w, x, SIZE, offsets, SIZE))
def block_slide_listed(builder, block, taps, w, x, x_at, offsets, at):
    """As `block_slide` with w_at 0, for rows that begin at x_at + offsets[at], x_at + offsets[at + 1], and so on."""
    return _slide_groups(builder, block, taps, w.at(I64(0)), offsets.at(at), _listed(builder, x.at(x_at)))


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


def _slide_groups(builder, block: Registers, taps, first_tap, first_row, rows: Rows) -> Registers:
    """As `_slide` for a number of taps that is known at run time."""
    group = GROUP[cpu().lanes]
    sums = {at: cgutils.alloca_once_value(builder, block[at]) for at in block.positions}
    next_tap, next_row = (cgutils.alloca_once_value(builder, start) for start in (first_tap, first_row))

    def step(count: int) -> None:
        tap, row = builder.load(next_tap), builder.load(next_row)
        for at in block.positions:
            block[at] = builder.load(sums[at])
        _slide(builder, block, count, tap, row, rows)
        for at in block.positions:
            builder.store(block[at], sums[at])
        builder.store(offset_by(builder, tap, count), next_tap)
        builder.store(rows.after(row, count), next_row)

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
