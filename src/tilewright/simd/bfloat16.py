"""bfloat16: the upper half of a float32. Conversion, and the dot product of pairs.

Matrix instructions want consecutive k in pairs: one 32-bit word holds k = 2p in its low half and k = 2p + 1 in its high
half. Words travel in arrays and vectors of float32, so that packing and transposing them is the same code as for
numbers. Rounding is to nearest, ties to even. In integer arithmetic denormals are kept; the instruction that packs two
vectors at once (`block_gather_converted`) takes them for zero, and there alone machines may differ.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tilewright.simd.blocks import _each_vector, _row_times_vectors, _scalars, _whole_or_part
from tilewright.simd.types import I32, I64, Vector, call, filled, lane_mask, pointer, vector_of
from tilewright.simd.vectors import load_bfloat16, load_some, load_vector

I16 = ir.IntType(16)
INFINITY = 0x7F80_0000  # float32 bits; above it, without the sign, are the NaNs


class _BFloatType(ir.Type):
    """LLVM's bfloat, which llvmlite does not name."""

    def _to_string(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, _BFloatType)

    def __hash__(self):
        return hash(_BFloatType)


def _rounded(builder, bits):
    """<n x i32> float32 bits -> the same numbers rounded to bfloat16, still as float32 bits (low half zero)."""
    constant = lambda value: filled(bits.type, value)  # noqa: E731 - a name for four uses
    odd = builder.and_(builder.lshr(bits, constant(16)), constant(1))
    nearest = builder.add(bits, builder.add(odd, constant(0x7FFF)))
    magnitude = builder.and_(bits, constant(0x7FFF_FFFF))
    is_nan = builder.icmp_unsigned(">", magnitude, constant(INFINITY))
    quiet = builder.or_(bits, constant(0x0040_0000))
    return builder.and_(builder.select(is_nan, quiet, nearest), constant(-0x10000))


def _packed(builder, bits):
    """<2n x i32> with empty low halves -> <n x float> of words."""
    lanes = bits.type.count
    halves = builder.trunc(builder.lshr(bits, filled(bits.type, 16)), vector_of(lanes, I16))
    return builder.bitcast(halves, vector_of(lanes // 2))


def _load_bits(builder, at, count, lanes: int):
    """2 * lanes float32 as integers, zero from `count` on; two masked loads."""
    low = load_some(builder, at, count, lanes)
    high = load_some(builder, builder.gep(at, [I32(lanes)]), builder.sub(count, count.type(lanes)), lanes)
    both = builder.shuffle_vector(low, high, ir.Constant(vector_of(2 * lanes, I32), list(range(2 * lanes))))
    return builder.bitcast(both, vector_of(2 * lanes, I32))


@intrinsic(prefer_literal=True)
def load_rounded(typingctx, array, index, count, lanes):
    """`lanes` words from the 2 * lanes float32 at `array.flat[index:]`, rounded to bfloat16; zeros from `count`
    numbers on."""
    vector = Vector(lanes.literal_value)

    def codegen(context, builder, sig, args):
        at = pointer(context, builder, sig.args[0], args[0], args[1])
        return _packed(builder, _rounded(builder, _load_bits(builder, at, args[2], vector.lanes)))

    return vector(array, types.intp, types.intp, lanes), codegen


@intrinsic(prefer_literal=True)
def load_converted(typingctx, array, index, lanes):
    """`lanes` words from the 2 * lanes float32 at `array.flat[index:]`, by the instruction that takes denormals for 0;
    needs "avx512bf16"."""
    vector = Vector(lanes.literal_value)

    def codegen(context, builder, sig, args):
        at = pointer(context, builder, sig.args[0], args[0], args[1])
        low, high = (load_vector(builder, builder.gep(at, [I32(i)]), vector.lanes) for i in (0, vector.lanes))
        return _convert(builder, low, high)

    return vector(array, types.intp, lanes), codegen


@intrinsic(prefer_literal=True)
def load_remainder(typingctx, array, index, count, lanes):
    """As `load_rounded`, but of what rounding left: bfloat16(x - bfloat16(x)), the second limb of x.

    Zero where x is not finite.
    """
    vector = Vector(lanes.literal_value)

    def codegen(context, builder, sig, args):
        at = pointer(context, builder, sig.args[0], args[0], args[1])
        return _packed(builder, _remainder(builder, _load_bits(builder, at, args[2], vector.lanes)))

    return vector(array, types.intp, types.intp, lanes), codegen


def _gathered(name: str, convert, doc: str):
    """An intrinsic that fills a block with words of rows that lie anywhere; `convert(builder, low, high)` makes a
    row of them."""

    def typing(typingctx, block, array, starts, first, last, offset, count):
        def codegen(context, builder, sig, args):
            value, array_, starts_, first_, last_, offset_, count_ = args
            for i in range(block.rows):
                row = builder.add(first_, I64(i))
                row = builder.select(builder.icmp_signed("<", row, last_), row, last_)
                start = builder.load(pointer(context, builder, sig.args[2], starts_, row))
                at = pointer(context, builder, sig.args[1], array_, builder.add(start, offset_))
                low = load_some(builder, at, count_, block.lanes)
                rest = builder.sub(count_, count_.type(block.lanes))
                high = load_some(builder, builder.gep(at, [I32(block.lanes)]), rest, block.lanes)
                value = builder.insert_value(value, convert(builder, low, high), i)
            return value

        integer = types.intp
        return block(block, array, starts, integer, integer, integer, integer), codegen

    typing.__name__, typing.__doc__ = name, doc
    return intrinsic(typing)


def _convert(builder, low, high):
    """VCVTNE2PS2BF16: both vectors rounded in one instruction."""
    lanes = low.type.count
    name, pairs = f"llvm.x86.avx512bf16.cvtne2ps2bf16.{32 * lanes}", vector_of(2 * lanes, _BFloatType())
    return builder.bitcast(call(builder, name, pairs, high, low), low.type)


def _round_both(builder, low, high):
    lanes = low.type.count
    both = builder.shuffle_vector(low, high, ir.Constant(vector_of(2 * lanes, I32), list(range(2 * lanes))))
    return _packed(builder, _rounded(builder, builder.bitcast(both, vector_of(2 * lanes, I32))))


block_gather_rounded = _gathered(
    "block_gather_rounded",
    _round_both,
    "`block_gather` of words: row i is `load_rounded(array, starts[min(first + i, last)] + offset, count)`.",
)
block_gather_converted = _gathered(
    "block_gather_converted",
    _convert,
    'As `block_gather_rounded`, by an instruction that takes denormals for zero; needs "avx512bf16".',
)


def _paired(name: str, limb, doc: str):
    """An intrinsic that makes words of two float32 vectors, low half from the first; `limb(builder, bits)` rounds."""

    def typing(typingctx, low, high):
        if not isinstance(low, Vector) or low != high:
            return None

        def codegen(context, builder, sig, args):
            low_bits, high_bits = (limb(builder, builder.bitcast(x, vector_of(low.lanes, I32))) for x in args)
            words = builder.or_(builder.lshr(low_bits, filled(low_bits.type, 16)), high_bits)
            return builder.bitcast(words, args[0].type)

        return low(low, high), codegen

    typing.__name__, typing.__doc__ = name, doc
    return intrinsic(typing)


def _remainder(builder, bits):
    """Bits of bfloat16(x - bfloat16(x)); zero where x is not finite or rounds to infinity."""
    floats = vector_of(bits.type.count)
    high = builder.bitcast(_rounded(builder, bits), floats)
    rest = builder.bitcast(builder.fsub(builder.bitcast(bits, floats), high), bits.type)
    magnitude = builder.and_(rest, filled(bits.type, 0x7FFF_FFFF))
    finite = builder.icmp_unsigned("<", magnitude, filled(bits.type, INFINITY))
    return _rounded(builder, builder.select(finite, rest, filled(bits.type, 0)))


pair_rounded = _paired("pair_rounded", _rounded, "Words of bfloat16(low), bfloat16(high).")
pair_remainder = _paired("pair_remainder", _remainder, "Words of what rounding left of low and high.")


def _halves(builder, words):
    """<n x float> of words -> (numbers of even k, numbers of odd k) as float32 vectors."""
    bits = builder.bitcast(words, vector_of(words.type.count, I32))
    even = builder.shl(bits, filled(bits.type, 16))
    odd = builder.and_(bits, filled(bits.type, -0x10000))
    return builder.bitcast(even, words.type), builder.bitcast(odd, words.type)


def _operands(context, builder, sig, args, block):
    """(rows scalars of a, vectors of b) of one step, as in `block_rank1`."""
    _, a, a_at, b, b_at = args
    start = pointer(context, builder, sig.args[3], b, b_at)
    vectors = [
        load_vector(builder, builder.gep(start, [I32(j * block.lanes)]), block.lanes) for j in range(block.vectors)
    ]
    return _scalars(builder, pointer(context, builder, sig.args[1], a, a_at), block.rows), vectors


@intrinsic
def block_widened_pair(typingctx, block, a, a_at, b, b_at):
    """block += two steps of `block_rank1`, from bfloat16 words widened in registers: for CPUs without bfloat16
    arithmetic."""

    def codegen(context, builder, sig, args):
        scalars, vectors = _operands(context, builder, sig, args, block)
        halves = [_halves(builder, v) for v in vectors]
        name = f"llvm.fma.v{block.lanes}f32"

        def product(scalar, pair, total):
            # the shuffled broadcast is taken apart once a row: LLVM merges the equal expressions of its vectors
            for own, other in zip(_halves(builder, scalar), pair, strict=True):
                total = call(builder, name, total.type, own, other, total)
            return total

        return _row_times_vectors(builder, block, args[0], scalars, halves, product)

    return block(block, a, types.intp, b, types.intp), codegen


@intrinsic
def block_mixed_pair(typingctx, block, a, a_at, b, b_at):
    """As `block_widened_pair`, but a is float32: numbers of even k of all rows, then those of odd k. Only b's vectors
    are taken apart, once for all rows."""

    def codegen(context, builder, sig, args):
        _, vectors = _operands(context, builder, sig, args, block)
        start, value = pointer(context, builder, sig.args[1], args[1], args[2]), args[0]
        name = f"llvm.fma.v{block.lanes}f32"
        for half, numbers in enumerate(zip(*(_halves(builder, vector) for vector in vectors), strict=True)):
            scalars = _scalars(builder, builder.gep(start, [I64(half * block.rows)]), block.rows)
            value = _row_times_vectors(
                builder, block, value, scalars, numbers, lambda s, v, c: call(builder, name, v.type, s, v, c)
            )
        return value

    return block(block, a, types.intp, b, types.intp), codegen


@intrinsic
def block_dot_pair(typingctx, block, a, a_at, b, b_at):
    """block += two steps of `block_rank1` from bfloat16 words in one instruction a register: VDPBF16PS, needs
    "avx512bf16"."""

    def codegen(context, builder, sig, args):
        scalars, vectors = _operands(context, builder, sig, args, block)
        pairs = vector_of(2 * block.lanes, _BFloatType())
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * block.lanes}"

        def product(scalar, vector, total):
            return call(
                builder, name, total.type, total, builder.bitcast(scalar, pairs), builder.bitcast(vector, pairs)
            )

        return _row_times_vectors(builder, block, args[0], scalars, vectors, product)

    return block(block, a, types.intp, b, types.intp), codegen


@intrinsic(prefer_literal=True)
def load_widened(typingctx, array, index, lanes):
    """`lanes` bfloat16 at `array.flat[index:]` (uint16 elements) as a float32 vector."""
    vector = Vector(lanes.literal_value)

    def codegen(context, builder, sig, args):
        return load_bfloat16(builder, pointer(context, builder, sig.args[0], args[0], args[1]), vector.lanes)

    return vector(array, types.intp, lanes), codegen


@intrinsic
def store_rounded(typingctx, array, index, value):
    """Round a float32 vector to bfloat16 and store it at `array.flat[index:]` (uint16 elements)."""

    def codegen(context, builder, sig, args):
        lanes = args[2].type.count
        bits = _rounded(builder, builder.bitcast(args[2], vector_of(lanes, I32)))
        halves = builder.trunc(builder.lshr(bits, filled(bits.type, 16)), vector_of(lanes, I16))
        at = pointer(context, builder, sig.args[0], args[0], args[1])
        builder.store(halves, builder.bitcast(at, halves.type.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), codegen


@intrinsic
def store_converted(typingctx, array, index, value):
    """As `store_rounded`, by an instruction that takes denormals for zero; needs "avx512bf16"."""

    def codegen(context, builder, sig, args):
        lanes = args[2].type.count
        name, numbers = f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * lanes}", vector_of(lanes, _BFloatType())
        found = builder.bitcast(call(builder, name, numbers, args[2]), vector_of(lanes, I16))
        at = pointer(context, builder, sig.args[0], args[0], args[1])
        builder.store(found, builder.bitcast(at, found.type.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), codegen


def _element(builder, array, value):
    """A vector of float32 as the array keeps it: itself, or its upper halves, rounded, for uint16."""
    if array.dtype == types.float32:
        return value
    bits = _rounded(builder, builder.bitcast(value, vector_of(value.type.count, I32)))
    return builder.trunc(builder.lshr(bits, filled(bits.type, 16)), vector_of(value.type.count, I16))


@intrinsic
def put(typingctx, array, index, number):
    """`array.flat[index]` = a float32 number, rounded to bfloat16 where the array holds uint16."""

    def codegen(context, builder, sig, args):
        at = pointer(context, builder, sig.args[0], args[0], args[1])
        one = builder.insert_element(ir.Constant(vector_of(1), ir.Undefined), args[2], I32(0))
        builder.store(builder.extract_element(_element(builder, sig.args[0], one), I32(0)), at)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.float32), codegen


@intrinsic
def put_first(typingctx, array, index, value, count):
    """The first `count` lanes of a float32 vector to `array.flat[index:]`, rounded where the array holds uint16."""

    def codegen(context, builder, sig, args):
        found = _element(builder, sig.args[0], args[2])
        lanes, word = found.type.count, 4 if sig.args[0].dtype == types.float32 else 2
        at = builder.bitcast(pointer(context, builder, sig.args[0], args[0], args[1]), found.type.as_pointer())
        name = f"llvm.masked.store.v{lanes}{'f32' if word == 4 else 'i16'}.p0"
        call(builder, name, ir.VoidType(), found, at, I32(word), lane_mask(builder, args[3], lanes))
        return context.get_dummy_value()

    return types.void(array, types.intp, value, types.intp), codegen


@intrinsic
def block_put(typingctx, block, array, at, stride, columns):
    """The first `columns` columns of the block to `array`, laid out as by `block_store`, rounded where it holds
    uint16."""

    def codegen(context, builder, sig, args):
        value, array_, at_, stride_, columns_ = args
        start = pointer(context, builder, sig.args[1], array_, at_)
        word = 4 if sig.args[1].dtype == types.float32 else 2

        def each():
            for number, target, column in _each_vector(builder, block, start, stride_):
                found = _element(builder, sig.args[1], builder.extract_value(value, number))
                yield found, builder.bitcast(target, found.type.as_pointer()), column

        def whole():
            for found, target, _ in each():
                builder.store(found, target, align=word)

        def part():
            name = f"llvm.masked.store.v{block.lanes}{'f32' if word == 4 else 'i16'}.p0"
            for found, target, column in each():
                mask = lane_mask(builder, builder.sub(columns_, I64(column)), block.lanes)
                call(builder, name, ir.VoidType(), found, target, I32(word), mask)

        _whole_or_part(builder, block, columns_, whole, part)
        return context.get_dummy_value()

    return types.void(block, array, types.intp, types.intp, types.intp), codegen


@intrinsic
def scatter(typingctx, array, index, stride, value):
    """Lane i of a float32 vector to `array.flat[index + i * stride]`, rounded where the array holds uint16."""

    def codegen(context, builder, sig, args):
        found = _element(builder, sig.args[0], args[3])
        start = pointer(context, builder, sig.args[0], args[0], args[1])
        for i in range(found.type.count):
            builder.store(builder.extract_element(found, I32(i)), builder.gep(start, [builder.mul(args[2], I64(i))]))
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, value), codegen
