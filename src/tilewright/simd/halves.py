"""The two numbers of a bfloat16 word: taken apart, put together, and a matrix's rows multiplied by one of them.

Words are those of `bfloat16`: two numbers in 32 bits, the first in the low half. They travel as float32, and move
between memory and registers by `load`, `store`, `block_load` and `block_put`.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tilewright.simd.blocks import multiplied_rows
from tilewright.simd.types import I32, Block, Vector, call, filled, lane_mask, pointer, vector_of
from tilewright.simd.vectors import load_vector

I16 = ir.IntType(16)
LOW, HIGH = 0xFFFF, -0x10000  # the bits of each half


def _bits(builder, words):
    return builder.bitcast(words, vector_of(words.type.count, I32))


def _first(builder, words):
    """The numbers in the low halves, as float32."""
    bits = _bits(builder, words)
    return builder.bitcast(builder.shl(bits, filled(bits.type, 16)), words.type)


def _second(builder, words):
    """The numbers in the high halves, as float32."""
    bits = _bits(builder, words)
    return builder.bitcast(builder.and_(bits, filled(bits.type, HIGH)), words.type)


def _taken(name: str, half, doc: str):
    """An intrinsic that makes float32 numbers of words, a vector or a block; `half(builder, words)` takes them."""

    def typing(typingctx, words):
        def of_block(context, builder, sig, args):
            block = args[0]
            for at in range(words.rows * words.vectors):
                vector = half(builder, builder.extract_value(args[0], at))
                block = builder.insert_value(block, vector, at)
            return block

        if isinstance(words, Vector):
            return words(words), lambda context, builder, sig, args: half(builder, args[0])
        return (words(words), of_block) if isinstance(words, Block) else None

    typing.__name__, typing.__doc__ = name, doc
    return intrinsic(typing)


first_halves = _taken("first_halves", _first, "The first number of each word, as float32.")
second_halves = _taken("second_halves", _second, "The second number of each word, as float32.")


def _joined(name: str, move, doc: str):
    """An intrinsic that makes words of the first numbers of a and of what `move(builder, bits)` makes of b's bits."""

    def typing(typingctx, a, b):
        if not isinstance(a, Vector) or a != b:
            return None

        def codegen(context, builder, sig, args):
            low, high = (_bits(builder, x) for x in args)
            low = builder.and_(low, filled(low.type, LOW))
            return builder.bitcast(builder.or_(low, move(builder, high)), args[0].type)

        return a(a, b), codegen

    typing.__name__, typing.__doc__ = name, doc
    return intrinsic(typing)


join_firsts = _joined(
    "join_firsts",
    lambda builder, bits: builder.shl(bits, filled(bits.type, 16)),
    "Words of the first numbers of a and those of b.",
)
join_halves = _joined(
    "join_halves",
    lambda builder, bits: builder.and_(bits, filled(bits.type, HIGH)),
    "Words of the first numbers of a and the second ones of b.",
)


@intrinsic(prefer_literal=True)
def load_halves(typingctx, array, index, count, lanes):
    """Words whose first numbers are the first `count` of the `lanes` bfloat16 that begin at word `array.flat[index]`;
    all others are 0, and not read."""
    vector = Vector(lanes.literal_value)

    def codegen(context, builder, sig, args):
        halves = vector_of(vector.lanes, I16)
        at = pointer(context, builder, sig.args[0], args[0], args[1])
        at, mask = builder.bitcast(at, halves.as_pointer()), lane_mask(builder, args[2], vector.lanes)
        name = f"llvm.masked.load.v{vector.lanes}i16.p0"
        found = call(builder, name, halves, at, I32(2), mask, filled(halves, 0))
        return builder.bitcast(builder.zext(found, vector_of(vector.lanes, I32)), vector_of(vector.lanes))

    return vector(array, types.intp, types.intp, lanes), codegen


def _rank1(name: str, half, doc: str):
    """`block_rank1_rows` with the float32 numbers that `half(builder, words)` makes of b."""

    def typing(typingctx, block, a, a_at, a_stride, b, b_at, b_stride):
        integer = types.intp

        def codegen(context, builder, sig, args):
            return multiplied_rows(
                context, builder, sig, args, lambda at, lanes: half(builder, load_vector(builder, at, lanes))
            )

        return block(block, a, integer, integer, b, integer, integer), codegen

    typing.__name__, typing.__doc__ = name, doc
    return intrinsic(typing)


block_rank1_first = _rank1(
    "block_rank1_first", _first, "`block_rank1_rows` with the first numbers of b's words; b's index counts words."
)
block_rank1_second = _rank1("block_rank1_second", _second, "As `block_rank1_first`, with their second numbers.")
