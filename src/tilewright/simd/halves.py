"""The two elements of a bfloat16 word: taken apart, put together, and a matrix's rows times one of them.

Words are those of `bfloat16.py`: two elements in 32 bits, the first in the low half. They travel as float32, and
`load`, `store`, `block_load` and `block_put` move them between memory and registers.
"""

from numba import types

from tilewright.simd.blocks import rank1_rows
from tilewright.simd.instruction import Registers, instruction, same, vector
from tilewright.simd.types import I16, I32, Block, Vector, filled, vector_of
from tilewright.simd.vectors import load_some

LOW, HIGH = 0xFFFF, -0x10000  # the bits of each half
BFLOAT16 = 16  # bits


def bits_of(builder, words):
    """A vector's 32-bit integers."""
    return builder.bitcast(words, vector_of(words.type.count, I32))


def to_high(builder, bits):
    """The low halves moved to the high halves, zeros below."""
    return builder.shl(bits, filled(bits.type, BFLOAT16))


def only_high(builder, bits):
    """The high halves, zeros below."""
    return builder.and_(bits, filled(bits.type, HIGH))


def first_half(builder, words):
    """The elements in the low halves, as float32."""
    return builder.bitcast(to_high(builder, bits_of(builder, words)), words.type)


def second_half(builder, words):
    """The elements in the high halves, as float32."""
    return builder.bitcast(only_high(builder, bits_of(builder, words)), words.type)


def _taken(name: str, doc: str, half):
    """An instruction that makes float32 elements of the words of a vector or of a block."""

    def emit(builder, words):
        if not isinstance(words, Registers):
            return half(builder, words)
        for at in words.positions:
            words[at] = half(builder, words[at])
        return words

    return instruction(lambda words: words(words) if isinstance(words, Vector | Block) else None, name, doc)(emit)


first_halves = _taken("first_halves", "The first element of each word, as float32.", first_half)
second_halves = _taken("second_halves", "The second element of each word, as float32.", second_half)


def _joined(name: str, doc: str, move):
    """An instruction that makes words of the first elements of a and of `move(builder, bits of b)`."""

    def emit(builder, a, b):
        low, high = bits_of(builder, a), bits_of(builder, b)
        low = builder.and_(low, filled(low.type, LOW))
        return builder.bitcast(builder.or_(low, move(builder, high)), a.type)

    return instruction(same, name, doc)(emit)


join_firsts = _joined("join_firsts", "Words of the first elements of a and the first elements of b.", to_high)
join_halves = _joined("join_halves", "Words of the first elements of a and the second elements of b.", only_high)


@instruction(lambda array, index, count, lanes: vector(lanes)(array, types.intp, types.intp, lanes))
def load_halves(builder, array, index, count, lanes):
    """Words whose first elements are `count` consecutive bfloat16, starting at word `array.flat[index]`.

    The other words, up to `lanes`, are 0, and their memory is not read.
    """
    found = load_some(builder, array.at(index), count, lanes, I16)
    return builder.bitcast(builder.zext(found, vector_of(lanes, I32)), vector_of(lanes))


block_rank1_first = rank1_rows(
    "block_rank1_first", "`block_rank1_rows` with the first elements of b's words; b's index counts words.", first_half
)
block_rank1_second = rank1_rows(
    "block_rank1_second", "As `block_rank1_first`, with their second elements.", second_half
)
