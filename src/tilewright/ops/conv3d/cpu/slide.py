"""The step of every vector rung: taps in registers slide over rows of numbers, and each loaded vector feeds them all.

A block holds one vector of each of `rows` neighbouring rows of outputs. Row j of the input goes to output row j - b
with tap b, so rows + taps - 1 loads serve rows * taps multiply-adds, and a tap is loaded once for all rows.
"""

import functools

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tilewright import simd
from tilewright.simd.types import I32, I64, broadcast_lane, call, pointer
from tilewright.simd.vectors import load_vector, store_some, store_vector

GROUP = {16: 8, 8: 4, 4: 4}  # lanes: taps in registers at once, beside 16 sums of 32 registers, or 8 of 16
# lanes: numbers of taps that have kernels of their own; 2, 4 and 8 are single groups already, and others are rare
OWN = {16: (3, 5, 7), 8: (3, 5), 4: (3, 5)}


def _slide(builder, block, sums: list, first, row, stride, taps: int) -> list:
    """LLVM code of `taps` taps from pointer `first`, over rows from pointer `row` on; the new sums."""
    name = f"llvm.fma.v{block.lanes}f32"
    numbers = [builder.load(builder.gep(first, [I64(b)]), align=4) for b in range(taps)]
    weights = [broadcast_lane(builder, number, block.lanes) for number in numbers]
    for j in range(block.rows + taps - 1):
        vector = load_vector(builder, row, block.lanes)
        for b in range(max(0, j - block.rows + 1), min(taps, j + 1)):
            sums[j - b] = call(builder, name, vector.type, weights[b], vector, sums[j - b])
        row = builder.gep(row, [stride])
    return sums


def _block_of(builder, value, sums: list):
    for i, vector in enumerate(sums):
        value = builder.insert_value(value, vector, i)
    return value


@intrinsic(prefer_literal=True)
def block_slide(typingctx, block, taps, w, w_at, x, x_at, stride):
    """Row i of block += sum over b of w.flat[w_at + b] * x.flat[x_at + (i + b) * stride : + lanes], b ascending.

    taps: how many b there are, a compile-time constant; a block has one vector a row.
    """

    def codegen(context, builder, sig, args):
        value, _, w_, w_at_, x_, x_at_, stride_ = args
        first, row = (pointer(context, builder, *a) for a in ((sig.args[2], w_, w_at_), (sig.args[4], x_, x_at_)))
        sums = [builder.extract_value(value, i) for i in range(block.rows)]
        return _block_of(builder, value, _slide(builder, block, sums, first, row, stride_, taps.literal_value))

    return block(block, taps, w, types.intp, x, types.intp, types.intp), codegen


@intrinsic
def block_slide_any(typingctx, block, taps, w, w_at, x, x_at, stride):
    """`block_slide` of any number of taps: by groups of 8, or of 4 where registers are few, then 4, 2 and 1.

    One piece of LLVM code: with loops in Numba the block would pass through memory between its groups.
    """

    def codegen(context, builder, sig, args):
        value, taps_, w_, w_at_, x_, x_at_, stride_ = args
        group = GROUP[block.lanes]
        sums = [cgutils.alloca_once_value(builder, builder.extract_value(value, i)) for i in range(block.rows)]
        first = cgutils.alloca_once_value(builder, pointer(context, builder, sig.args[2], w_, w_at_))
        row = cgutils.alloca_once_value(builder, pointer(context, builder, sig.args[4], x_, x_at_))

        def step(count):
            w_now, row_now = builder.load(first), builder.load(row)
            found = _slide(builder, block, [builder.load(s) for s in sums], w_now, row_now, stride_, count)
            for place, vector in zip(sums, found, strict=True):
                builder.store(vector, place)
            builder.store(builder.gep(w_now, [I64(count)]), first)
            builder.store(builder.gep(row_now, [builder.mul(stride_, I64(count))]), row)

        with cgutils.for_range(builder, builder.sdiv(taps_, I64(group))):
            step(group)
        for bit in (4, 2, 1):
            if bit < group:
                with builder.if_then(builder.icmp_signed("!=", builder.and_(taps_, I64(bit)), I64(0))):
                    step(bit)
        return _block_of(builder, value, [builder.load(place) for place in sums])

    return block(block, types.intp, w, types.intp, x, types.intp, types.intp), codegen


@intrinsic
def block_put(typingctx, block, out, at, stride, size, stream):
    """The block's first size[0] rows and size[1] columns to out, row i at out.flat[at + i * stride].

    stream: past the caches, which needs rows at multiples of the vector; only whole blocks are streamed.
    """

    def codegen(context, builder, sig, args):
        value, out_, at_, stride_, size_, stream_ = args
        rows, columns = (builder.extract_value(size_, i) for i in range(2))
        start = pointer(context, builder, sig.args[1], out_, at_)
        targets = [builder.gep(start, [builder.mul(stride_, I64(i))]) for i in range(block.rows)]
        vectors = [builder.extract_value(value, i) for i in range(block.rows)]
        whole = builder.icmp_signed(">=", rows, I64(block.rows))
        whole = builder.and_(whole, builder.icmp_signed(">=", columns, I64(block.lanes)))
        with builder.if_else(whole, likely=True) as (then, otherwise):
            with then, builder.if_else(stream_) as (past, plain):
                with past:
                    marked = builder.module.add_metadata([I32(1)])
                    for vector, target in zip(vectors, targets, strict=True):
                        target = builder.bitcast(target, vector.type.as_pointer())
                        builder.store(vector, target, align=4 * block.lanes).set_metadata("nontemporal", marked)
                with plain:
                    for vector, target in zip(vectors, targets, strict=True):
                        store_vector(builder, vector, target)
            with otherwise:
                for i, (vector, target) in enumerate(zip(vectors, targets, strict=True)):
                    there = builder.icmp_signed("<", I64(i), rows)
                    store_some(builder, vector, target, builder.select(there, columns, I64(0)))
        return context.get_dummy_value()

    size_type = types.UniTuple(types.int64, 2)
    return types.void(block, out, types.intp, types.intp, size_type, types.boolean), codegen


@intrinsic
def fence(typingctx):
    """All stores before it, streamed ones too, are seen before any after it."""

    def codegen(context, builder, sig, args):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@functools.cache
def column(taps: int):
    """What slides a column of taps down a block: as many as this says, or, for 0, as its argument KH says."""
    if taps:

        @simd.inline
        def slide(block, KH, w, w_at, x, x_at, stride):
            return block_slide(block, taps, w, w_at, x, x_at, stride)

        return slide
    return block_slide_any
