"""8-bit integers in 32-bit words: four products and their sum per lane, and the conversion back to float32.

Words and int32 sums use the vectors and blocks of float32 as containers: nothing adds them as floating-point values.
"""

import llvmlite.binding

from tilewright.simd.blocks import add_outer, load_column, load_row, step_of
from tilewright.simd.instruction import instruction, same
from tilewright.simd.types import BIT, I8, I16, I32, call, vector_of

BYTES_SINCE = 22  # the first LLVM whose intrinsic takes vectors of bytes; earlier ones take words


@instruction(step_of)
def block_dot_quad(builder, block, a, a_at, b, b_at):
    """block (int32) += four products per row and lane: the unsigned bytes of a word of a times the signed bytes of a
    word of b. VPDPBUSD, needs "avx512vnni". a: `rows` words from a_at; b: vectors * lanes words from b_at."""
    row = load_row(builder, b.at(b_at), block)
    column = load_column(builder, a.at(a_at), block.rows)
    ints = vector_of(block.lanes, I32)
    takes_bytes = llvmlite.binding.llvm_version_info[0] >= BYTES_SINCE
    operand = vector_of(4 * block.lanes, I8) if takes_bytes else ints

    def product(scalar, vector, total):
        words = [builder.bitcast(total, ints), *(builder.bitcast(x, operand) for x in (scalar, vector))]
        found = call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * block.lanes}", ints, *words)
        return builder.bitcast(found, total.type)

    return add_outer(builder, block, column, row, product)


@instruction(step_of)
def block_dot_signed_quad(builder, block, a, a_at, b, b_at):
    """As `block_dot_quad`, by AVX2, where the bytes of a are signed, too, and no byte is -128.

    VPMADDUBSW adds two products of an unsigned and a signed byte in 16 bits: |a| times (b with the sign of a). Neither
    sum overflows, because 2 * 127 * 127 is less than 32,768. VPMADDWD adds two such sums in 32 bits.
    """
    row = load_row(builder, b.at(b_at), block)
    column = load_column(builder, a.at(a_at), block.rows)
    octets, halves, ints = (vector_of(32 // size, kind) for size, kind in ((1, I8), (2, I16), (4, I32)))

    def product(scalar, vector, total):
        signed, factor = (builder.bitcast(x, octets) for x in (scalar, vector))
        size = call(builder, "llvm.abs.v32i8", octets, signed, BIT(0))
        factor = call(builder, "llvm.x86.avx2.psign.b", octets, factor, signed)
        pairs = call(builder, "llvm.x86.avx2.pmadd.ub.sw", halves, size, factor)
        quads = call(builder, "llvm.x86.avx2.pmadd.wd", ints, pairs, halves([1] * halves.count))
        return builder.bitcast(builder.add(builder.bitcast(total, ints), quads), total.type)

    return add_outer(builder, block, column, row, product)


@instruction(same)
def integers_less(builder, a, b):
    """float32(a - b) for two vectors of int32."""
    ints = vector_of(a.type.count, I32)
    difference = builder.sub(builder.bitcast(a, ints), builder.bitcast(b, ints))
    return builder.sitofp(difference, a.type)
