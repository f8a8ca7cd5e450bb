"""Register blocks: the tile of C that a matrix micro-kernel keeps in registers from the first k to the last.

    block = simd.block_zeros(12, 2, 16)              # 12 x 32 of C: 24 of AVX-512's 32 registers
    for p in range(K):
        block = simd.block_rank1(block, a, p * 12, b, p * 32)
    simd.block_store(block, c, 0, ldc, 32)

Two vectors of B, one broadcast of A and 24 accumulators are 27 registers: LLVM keeps all of them without a spill, and
the loop runs at the machine's FMA rate (253 GFLOP/s on a Zen 5 core of 256, measured November 2026). The source of the
outer-product micro-kernel: Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tilewright.simd.types import I32, I64, Block, broadcast_lane, call, filled, pointer, vector_of
from tilewright.simd.vectors import load_some, load_vector, store_some, store_vector


@intrinsic(prefer_literal=True)
def block_zeros(typingctx, rows, vectors, lanes):
    """A register block of zeros, `rows x (vectors * lanes)`; all three are compile-time constants."""
    block = Block(rows.literal_value, vectors.literal_value, lanes.literal_value)

    def codegen(context, builder, sig, args):
        array = context.get_value_type(sig.return_type)
        return ir.Constant(array, [filled(array.element, 0.0)] * array.count)

    return block(rows, vectors, lanes), codegen


def _row_times_vectors(builder, block: Block, value, scalars, vectors, product):
    """value[i][j] = product(scalar i in every lane, vector j, value[i][j]) for the whole block."""
    for i in range(block.rows):
        scalar = broadcast_lane(builder, scalars[i], block.lanes)
        for j in range(block.vectors):
            at = i * block.vectors + j
            value = builder.insert_value(value, product(scalar, vectors[j], builder.extract_value(value, at)), at)
    return value


def _scalars(builder, at, count: int, element=None):
    """`count` consecutive 4-byte words from the pointer `at`."""
    if element is not None:
        at = builder.bitcast(at, element.as_pointer())
    return [builder.load(builder.gep(at, [I64(i)]), align=4) for i in range(count)]


@intrinsic
def block_rank1(typingctx, block, a, a_at, b, b_at):
    """block += outer(a.flat[a_at : + rows], b.flat[b_at : + vectors * lanes]): one step along K."""

    def codegen(context, builder, sig, args):
        value, a_, a_at_, b_, b_at_ = args
        b_start = pointer(context, builder, sig.args[3], b_, b_at_)
        vectors = [
            load_vector(builder, builder.gep(b_start, [I64(j * block.lanes)]), block.lanes)
            for j in range(block.vectors)
        ]
        scalars = _scalars(builder, pointer(context, builder, sig.args[1], a_, a_at_), block.rows)
        name = f"llvm.fma.v{block.lanes}f32"
        return _row_times_vectors(
            builder, block, value, scalars, vectors, lambda s, v, c: call(builder, name, v.type, s, v, c)
        )

    return block(block, a, types.intp, b, types.intp), codegen


def multiplied_rows(context, builder, sig, args, load):
    """The code of `block_rank1_rows`; `load(pointer, lanes)` gives a vector of b."""
    (value, a_, a_at_, a_stride_, b_, b_at_, b_stride_), block = args, sig.return_type
    a_start = pointer(context, builder, sig.args[1], a_, a_at_)
    b_start = pointer(context, builder, sig.args[4], b_, b_at_)
    for i in range(block.rows):
        number = builder.load(builder.gep(a_start, [builder.mul(a_stride_, I64(i))]), align=4)
        scalar = broadcast_lane(builder, number, block.lanes)
        for j in range(block.vectors):
            place = builder.add(builder.mul(b_stride_, I64(i)), I64(j * block.lanes))
            vector, at = load(builder.gep(b_start, [place]), block.lanes), i * block.vectors + j
            total = builder.extract_value(value, at)
            both = call(builder, f"llvm.fma.v{block.lanes}f32", vector.type, scalar, vector, total)
            value = builder.insert_value(value, both, at)
    return value


@intrinsic
def block_rank1_rows(typingctx, block, a, a_at, a_stride, b, b_at, b_stride):
    """Row i of block += a.flat[a_at + i * a_stride] * b.flat[b_at + i * b_stride : + vectors * lanes].

    `block_rank1` for a matrix A that is not packed; with b_stride 0 all rows share their vectors of b, which are loaded
    once, otherwise each has its own.
    """
    integer = types.intp

    def codegen(context, builder, sig, args):
        return multiplied_rows(context, builder, sig, args, lambda at, lanes: load_vector(builder, at, lanes))

    return block(block, a, integer, integer, b, integer, integer), codegen


def _each_vector(builder, block: Block, start, stride):
    """(number of the vector, its pointer, its first column) for a block whose rows are `stride` float32 apart in
    memory."""
    for i in range(block.rows):
        row = builder.gep(start, [builder.mul(stride, I64(i))])
        for j in range(block.vectors):
            yield i * block.vectors + j, builder.gep(row, [I64(j * block.lanes)]), j * block.lanes


def _whole_or_part(builder, block: Block, columns, whole, part):
    """Run `whole()` if the block's full width is wanted, else `part()`: the masked code is paid for at the right
    edge only."""
    full = builder.icmp_signed(">=", columns, I64(block.vectors * block.lanes))
    with builder.if_else(full, likely=True) as (then, otherwise):
        with then:
            whole()
        with otherwise:
            part()


@intrinsic
def block_store(typingctx, block, c, c_at, stride, columns):
    """The first `columns` columns of the block to c: row i goes to `c.flat[c_at + i * stride : + columns]`."""

    def codegen(context, builder, sig, args):
        value, c_, c_at_, stride_, columns_ = args
        start = pointer(context, builder, sig.args[1], c_, c_at_)

        def whole():
            for at, target, _ in _each_vector(builder, block, start, stride_):
                store_vector(builder, builder.extract_value(value, at), target)

        def part():
            for at, target, column in _each_vector(builder, block, start, stride_):
                store_some(builder, builder.extract_value(value, at), target, builder.sub(columns_, I64(column)))

        _whole_or_part(builder, block, columns_, whole, part)
        return context.get_dummy_value()

    return types.void(block, c, types.intp, types.intp, types.intp), codegen


@intrinsic
def block_add(typingctx, block, c, c_at, stride, columns):
    """block + c's first `columns` columns, laid out as in `block_store`; the columns beyond are left as they are."""

    def codegen(context, builder, sig, args):
        value, c_, c_at_, stride_, columns_ = args
        start = pointer(context, builder, sig.args[1], c_, c_at_)
        result = builder.alloca(value.type)

        def summed(load):
            total = value
            for at, source, column in _each_vector(builder, block, start, stride_):
                both = builder.fadd(load(source, column), builder.extract_value(value, at))
                total = builder.insert_value(total, both, at)
            builder.store(total, result)

        _whole_or_part(
            builder,
            block,
            columns_,
            lambda: summed(lambda source, column: load_vector(builder, source, block.lanes)),
            lambda: summed(
                lambda source, column: load_some(builder, source, builder.sub(columns_, I64(column)), block.lanes)
            ),
        )
        return builder.load(result)

    return block(block, c, types.intp, types.intp, types.intp), codegen


@intrinsic
def block_gather(typingctx, block, array, starts, first, last, offset):
    """A block whose row i is `array.flat[starts[min(first + i, last)] + offset :]`: rows that may lie anywhere in
    memory.

    `block` gives the shape only; `starts` is an int64 array of element offsets.
    """

    def codegen(context, builder, sig, args):
        value, array_, starts_, first_, last_, offset_ = args
        for i in range(block.rows):
            row = builder.add(first_, I64(i))
            row = builder.select(builder.icmp_signed("<", row, last_), row, last_)
            start = builder.load(pointer(context, builder, sig.args[2], starts_, row))
            source = pointer(context, builder, sig.args[1], array_, builder.add(start, offset_))
            for j in range(block.vectors):
                vector = load_vector(builder, builder.gep(source, [I64(j * block.lanes)]), block.lanes)
                value = builder.insert_value(value, vector, i * block.vectors + j)
        return value

    return block(block, array, starts, types.intp, types.intp, types.intp), codegen


@intrinsic
def block_load(typingctx, block, array, at, stride, rows):
    """A block whose row i is `array.flat[at + min(i, rows - 1) * stride :]`; `block` gives the shape only."""

    def codegen(context, builder, sig, args):
        value, array_, at_, stride_, rows_ = args
        start, last = pointer(context, builder, sig.args[1], array_, at_), builder.sub(rows_, I64(1))
        for i in range(block.rows):
            row = builder.select(builder.icmp_signed("<", I64(i), last), I64(i), last)
            source = builder.gep(start, [builder.mul(row, stride_)])
            for j in range(block.vectors):
                vector = load_vector(builder, builder.gep(source, [I64(j * block.lanes)]), block.lanes)
                value = builder.insert_value(value, vector, i * block.vectors + j)
        return value

    return block(block, array, types.intp, types.intp, types.intp), codegen


@intrinsic
def block_transpose(typingctx, block):
    """The transpose of a square block (rows == lanes, one vector a row), by log2(lanes) rounds of two-register
    shuffles.

    Round d swaps the off-diagonal d x d squares of each 2d x 2d square.
    """
    if block.vectors != 1 or block.rows != block.lanes:
        return None

    def codegen(context, builder, sig, args):
        n = block.lanes
        rows = [builder.extract_value(args[0], i) for i in range(n)]
        distance = n // 2
        while distance:
            upper = [i for i in range(n) if not i & distance]
            low = [i if not i & distance else n + i - distance for i in range(n)]
            high = [i + distance if not i & distance else n + i for i in range(n)]
            for i in upper:
                a, b = rows[i], rows[i + distance]
                rows[i] = builder.shuffle_vector(a, b, ir.Constant(vector_of(n, I32), low))
                rows[i + distance] = builder.shuffle_vector(a, b, ir.Constant(vector_of(n, I32), high))
            distance //= 2
        value = args[0]
        for i in range(n):
            value = builder.insert_value(value, rows[i], i)
        return value

    return block(block), codegen


@intrinsic
def block_dot_rows(typingctx, total, block, a, a_at):
    """total += block[0] * a.flat[a_at] + block[1] * a.flat[a_at + 1] + ..., FMA after FMA; one vector a row."""
    if block.vectors != 1:
        return None

    def codegen(context, builder, sig, args):
        value, block_, a_, a_at_ = args
        start = pointer(context, builder, sig.args[2], a_, a_at_)
        for i, number in enumerate(_scalars(builder, start, block.rows)):
            operands = broadcast_lane(builder, number, block.lanes), builder.extract_value(block_, i), value
            value = call(builder, f"llvm.fma.v{block.lanes}f32", value.type, *operands)
        return value

    return total(total, block, a, types.intp), codegen


def _of_two(name: str, emit, doc: str):
    """An intrinsic of two equal blocks; `emit(builder, lanes, one, other)` combines two vectors."""

    def typing(typingctx, a, b):
        if a != b or not isinstance(a, Block):
            return None

        def codegen(context, builder, sig, args):
            value = args[0]
            for at in range(a.rows * a.vectors):
                both = emit(builder, a.lanes, *(builder.extract_value(x, at) for x in args))
                value = builder.insert_value(value, both, at)
            return value

        return a(a, b), codegen

    typing.__name__, typing.__doc__ = name, doc
    return intrinsic(typing)


def _larger(builder, lanes: int, one, other):
    return call(builder, f"llvm.maximum.v{lanes}f32", one.type, one, other)


block_maximum = _of_two("block_maximum", _larger, "The larger of two equal blocks lane by lane, NaN if either is.")
block_sum = _of_two(
    "block_sum", lambda builder, lanes, one, other: builder.fadd(one, other), "The sum of two equal blocks."
)


@intrinsic
def block_scale_rows(typingctx, block, a, a_at):
    """Row i of the block times a.flat[a_at + i]."""
    if not isinstance(block, Block):
        return None

    def codegen(context, builder, sig, args):
        value, a_, a_at_ = args
        scalars = _scalars(builder, pointer(context, builder, sig.args[1], a_, a_at_), block.rows)
        for at in range(block.rows * block.vectors):
            factor = broadcast_lane(builder, scalars[at // block.vectors], block.lanes)
            value = builder.insert_value(value, builder.fmul(builder.extract_value(value, at), factor), at)
        return value

    return block(block, a, types.intp), codegen
