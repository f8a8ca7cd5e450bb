"""bfloat16, the upper half of a float32: conversion, and the dot product of pairs.

Matrix instructions take consecutive k in pairs. A 32-bit **word** holds k = 2p in its low half and k = 2p + 1 in its
high half. Words travel in arrays and vectors of float32, so the code that packs and transposes float32 elements moves
words as well. Rounding is to nearest, ties to even. Integer arithmetic preserves denormals. The instruction that packs
two vectors at once (`block_gather_converted`) takes them for zero, and only there may machines differ.
"""

from functools import partial

from llvmlite import ir
from numba import types

from tilewright.simd.blocks import (
    SIZE,
    Block,
    add_outer,
    each_vector,
    gathered_row,
    load_column,
    load_row,
    step_of,
    stored,
)
from tilewright.simd.halves import BFLOAT16, bits_of, first_half, second_half
from tilewright.simd.instruction import Memory, instruction, offset_by, same, vector
from tilewright.simd.types import I16, I32, I64, broadcast_lane, call, filled, lane_numbers, lanewise, vector_of
from tilewright.simd.vectors import load_some, load_vector, store_some, store_vector

INFINITY = 0x7F80_0000  # float32 bits; without the sign, NaNs are above


class _BFloatType(ir.Type):
    """LLVM's bfloat, which llvmlite does not name."""

    def _to_string(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, _BFloatType)

    def __hash__(self):
        return hash(_BFloatType)


def _rounded(builder, bits):
    """<n x i32> float32 bits -> the same elements rounded to bfloat16, still as float32 bits (low half zero)."""

    def constant(value: int):
        return filled(bits.type, value)

    odd = builder.and_(builder.lshr(bits, constant(BFLOAT16)), constant(1))
    nearest = builder.add(bits, builder.add(odd, constant(0x7FFF)))
    magnitude = builder.and_(bits, constant(0x7FFF_FFFF))
    is_nan = builder.icmp_unsigned(">", magnitude, constant(INFINITY))
    quiet = builder.or_(bits, constant(0x0040_0000))
    return builder.and_(builder.select(is_nan, quiet, nearest), constant(-0x10000))


def _remainder(builder, bits):
    """Bits of bfloat16(x - bfloat16(x)); zero where x is not finite or rounds to infinity."""
    floats = vector_of(bits.type.count)
    high = builder.bitcast(_rounded(builder, bits), floats)
    rest = builder.bitcast(builder.fsub(builder.bitcast(bits, floats), high), bits.type)
    magnitude = builder.and_(rest, filled(bits.type, 0x7FFF_FFFF))
    finite = builder.icmp_unsigned("<", magnitude, filled(bits.type, INFINITY))
    return _rounded(builder, builder.select(finite, rest, filled(bits.type, 0)))


def _upper_halves(builder, bits):
    """<n x i32> -> <n x i16>."""
    return builder.trunc(builder.lshr(bits, filled(bits.type, BFLOAT16)), vector_of(bits.type.count, I16))


def _packed(builder, bits):
    """<2n x i32> float32 bits -> <n x float> of words."""
    return builder.bitcast(_upper_halves(builder, bits), vector_of(bits.type.count // 2))


def _load_two(builder, at, count, lanes: int) -> tuple:
    """Two vectors of float32 from the pointer `at`, zero from element `count` on: two masked loads."""
    low = load_some(builder, at, count, lanes)
    rest = builder.sub(count, count.type(lanes))
    return low, load_some(builder, offset_by(builder, at, lanes), rest, lanes)


def _both(builder, low, high):
    """The bits of two vectors in one."""
    lanes = low.type.count
    return bits_of(builder, builder.shuffle_vector(low, high, lane_numbers(0, 2 * lanes)))


def _convert(builder, low, high):
    """VCVTNE2PS2BF16: both vectors rounded to words in one instruction."""
    lanes = low.type.count
    name, pairs = f"llvm.x86.avx512bf16.cvtne2ps2bf16.{32 * lanes}", vector_of(2 * lanes, _BFloatType())
    return builder.bitcast(call(builder, name, pairs, high, low), low.type)


def _round_both(builder, low, high):
    """The same in integer arithmetic."""
    return _packed(builder, _rounded(builder, _both(builder, low, high)))


@instruction(lambda array, index, count, lanes: vector(lanes)(array, SIZE, SIZE, lanes))
def load_rounded(builder, array, index, count, lanes):
    """`lanes` words from the 2 * lanes float32 at `array.flat[index:]`, rounded to bfloat16; zeros from element `count`
    on."""
    return _round_both(builder, *_load_two(builder, array.at(index), count, lanes))


@instruction(lambda array, index, lanes: vector(lanes)(array, SIZE, lanes))
def load_converted(builder, array, index, lanes):
    """`lanes` words from the 2 * lanes float32 at `array.flat[index:]`, by the instruction that takes denormals for
    zero; needs "avx512bf16"."""
    at = array.at(index)
    return _convert(builder, *[load_vector(builder, offset_by(builder, at, i), lanes) for i in (0, lanes)])


@instruction(lambda array, index, count, lanes: vector(lanes)(array, SIZE, SIZE, lanes))
def load_remainder(builder, array, index, count, lanes):
    """As `load_rounded`, for what rounding left: bfloat16(x - bfloat16(x)), the second limb of x.

    Zero where x is not finite.
    """
    bits = _both(builder, *_load_two(builder, array.at(index), count, lanes))
    return _packed(builder, _remainder(builder, bits))


@instruction(lambda block: block(block) if isinstance(block, Block) else None)
def block_nearest_bfloat16(builder, block):
    """Each element rounded to bfloat16, as float32."""
    for at in block.positions:
        block[at] = builder.bitcast(_rounded(builder, bits_of(builder, block[at])), block[at].type)
    return block


def _gathered(name: str, doc: str, convert):
    """An instruction that fills a block with words of rows anywhere in memory; `convert(builder, low, high)` makes the
    words of a row."""

    def emit(builder, block, array, starts, first, last, offset, count):
        for i in range(block.rows):
            at = gathered_row(builder, array, starts, builder.add(first, I64(i)), last, offset)
            block[i, 0] = convert(builder, *_load_two(builder, at, count, block.lanes))
        return block

    def signature(block, array, starts, first, last, offset, count):
        return block(block, array, starts, SIZE, SIZE, SIZE, SIZE)

    return instruction(signature, name, doc)(emit)


block_gather_rounded = _gathered(
    "block_gather_rounded",
    "`block_gather` of words: row i is `load_rounded(array, starts[min(first + i, last)] + offset, count)`.",
    _round_both,
)
block_gather_converted = _gathered(
    "block_gather_converted",
    'As `block_gather_rounded`, by an instruction that takes denormals for zero; needs "avx512bf16".',
    _convert,
)


def _paired(name: str, doc: str, limb):
    """An instruction that makes words of two float32 vectors, low half from the first; `limb(builder, bits)` rounds."""

    def emit(builder, low, high):
        low_bits, high_bits = (limb(builder, bits_of(builder, x)) for x in (low, high))
        words = builder.or_(builder.lshr(low_bits, filled(low_bits.type, BFLOAT16)), high_bits)
        return builder.bitcast(words, low.type)

    return instruction(same, name, doc)(emit)


pair_rounded = _paired("pair_rounded", "Words of bfloat16(low), bfloat16(high).", _rounded)
pair_remainder = _paired("pair_remainder", "Words of what rounding left of low and high.", _remainder)


def _both_halves(builder, words) -> tuple:
    """The elements of even k and the elements of odd k, as float32."""
    return first_half(builder, words), second_half(builder, words)


@instruction(step_of)
def block_widened_pair(builder, block, a, a_at, b, b_at):
    """block += two steps of `block_rank1`, from bfloat16 words widened in registers: for CPUs without bfloat16
    arithmetic."""
    row = load_row(builder, b.at(b_at), block)
    column = load_column(builder, a.at(a_at), block.rows)
    halves = [_both_halves(builder, words) for words in row]

    def product(scalar, pair, total):
        # the broadcast word is taken apart once per row: LLVM merges the equal expressions of its vectors
        for own, other in zip(_both_halves(builder, scalar), pair, strict=True):
            total = lanewise(builder, "fma", own, other, total)
        return total

    return add_outer(builder, block, column, halves, product)


@instruction(step_of)
def block_mixed_pair(builder, block, a, a_at, b, b_at):
    """As `block_widened_pair`, for a float32 a: the elements of even k of all rows, then the elements of odd k. Only
    b's vectors are taken apart, once for all rows."""
    start, row = a.at(a_at), load_row(builder, b.at(b_at), block)
    for odd, half in enumerate((first_half, second_half)):
        column = load_column(builder, offset_by(builder, start, odd * block.rows), block.rows)
        block = add_outer(builder, block, column, [half(builder, words) for words in row])
    return block


def _dot_pair(builder, scalar, words, total):
    """VDPBF16PS: total + products of the pairs in two vectors of words."""
    lanes = total.type.count
    name, pairs = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}", vector_of(2 * lanes, _BFloatType())
    return call(builder, name, total.type, total, builder.bitcast(scalar, pairs), builder.bitcast(words, pairs))


@instruction(step_of)
def block_dot_pair(builder, block, a, a_at, b, b_at):
    """block += two steps of `block_rank1` from bfloat16 words in one instruction per register: VDPBF16PS, needs
    "avx512bf16"."""
    row = load_row(builder, b.at(b_at), block)
    column = load_column(builder, a.at(a_at), block.rows)
    return add_outer(builder, block, column, row, partial(_dot_pair, builder))


@instruction(lambda total, block, a, a_at: total(total, block, a, SIZE) if block.vectors == 1 else None)
def block_dot_row_pairs(builder, total, block, a, a_at):
    """As `block_dot_rows`, from bfloat16 words of a and of the block: VDPBF16PS after VDPBF16PS, needs "avx512bf16"."""
    for i, scalar in enumerate(load_column(builder, a.at(a_at), block.rows)):
        total = _dot_pair(builder, broadcast_lane(builder, scalar, block.lanes), block[i, 0], total)
    return total


@instruction(lambda array, index, value: types.void(array, SIZE, value))
def store_rounded(builder, array, index, value):
    """A float32 vector rounded to bfloat16 at `array.flat[index:]` (uint16 elements)."""
    store_vector(builder, _upper_halves(builder, _rounded(builder, bits_of(builder, value))), array.at(index))


@instruction(lambda array, index, value: types.void(array, SIZE, value))
def store_converted(builder, array, index, value):
    """As `store_rounded`, by an instruction that takes denormals for zero; needs "avx512bf16"."""
    lanes = value.type.count
    name, elements = f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * lanes}", vector_of(lanes, _BFloatType())
    converted = builder.bitcast(call(builder, name, elements, value), vector_of(lanes, I16))
    store_vector(builder, converted, array.at(index))


def _in_dtype_of(array: Memory, value):
    """A float32 vector as the array stores it: unchanged, or rounded to bfloat16 for uint16."""
    if array.dtype == types.float32:
        return value
    return _upper_halves(array.builder, _rounded(array.builder, bits_of(array.builder, value)))


@instruction(lambda array, index, value: types.void(array, SIZE, types.float32))
def put(builder, array, index, value):
    """`array.flat[index]` = a float32 scalar, rounded to bfloat16 where the array holds uint16."""
    one = builder.insert_element(ir.Constant(vector_of(1), ir.Undefined), value, I32(0))
    builder.store(builder.extract_element(_in_dtype_of(array, one), I32(0)), array.at(index))


@instruction(lambda array, index, value, count: types.void(array, SIZE, value, SIZE))
def put_first(builder, array, index, value, count):
    """The first `count` lanes of a float32 vector to `array.flat[index:]`, rounded where the array holds uint16."""
    store_some(builder, _in_dtype_of(array, value), array.at(index), count)


@instruction(lambda block, array, at, stride, columns: types.void(block, array, SIZE, SIZE, SIZE))
def block_put(builder, block, array, at, stride, columns):
    """The first `columns` columns of the block to `array`, laid out as by `block_store`, rounded where it holds
    uint16."""

    def transfer(value, target, count):
        stored(builder, _in_dtype_of(array, value), target, count)

    each_vector(builder, block, array.at(at), stride, columns, transfer)


@instruction(lambda array, index, stride, value: types.void(array, SIZE, SIZE, value))
def scatter(builder, array, index, stride, value):
    """Lane i of a float32 vector to `array.flat[index + i * stride]`, rounded where the array holds uint16."""
    found, start = _in_dtype_of(array, value), array.at(index)
    for i in range(found.type.count):
        builder.store(builder.extract_element(found, I32(i)), builder.gep(start, [builder.mul(stride, I64(i))]))
