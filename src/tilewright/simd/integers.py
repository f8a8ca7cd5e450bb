"""8-bit integers in 32-bit words: four products and their sum in one instruction, and the way back to float32.

Words and int32 sums live in the vectors and blocks of float32: bits are bits, and nothing adds them as numbers.
"""

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tilewright.simd.blocks import _row_times_vectors, _scalars
from tilewright.simd.types import I32, Vector, call, pointer, vector_of
from tilewright.simd.vectors import load_vector

BYTES_SINCE = 22  # the LLVM whose intrinsic takes vectors of bytes; earlier ones take words


@intrinsic
def block_dot_quad(typingctx, block, a, a_at, b, b_at):
    """block (int32) += for each row and lane the sum of four products, unsigned bytes of a's word times signed ones of
    b's: VPDPBUSD, needs "avx512vnni". a: `rows` words at a_at, b: vectors * lanes words at b_at."""

    def codegen(context, builder, sig, args):
        _, a_, a_at_, b_, b_at_ = args
        start = pointer(context, builder, sig.args[3], b_, b_at_)
        vectors = [
            load_vector(builder, builder.gep(start, [ir.Constant(ir.IntType(64), j * block.lanes)]), block.lanes)
            for j in range(block.vectors)
        ]
        scalars = _scalars(builder, pointer(context, builder, sig.args[1], a_, a_at_), block.rows)
        ints = vector_of(block.lanes, I32)
        new = llvmlite.binding.llvm_version_info[0] >= BYTES_SINCE
        operand = vector_of(4 * block.lanes, ir.IntType(8)) if new else ints

        def product(scalar, vector, total):
            words = [builder.bitcast(total, ints), *(builder.bitcast(x, operand) for x in (scalar, vector))]
            found = call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * block.lanes}", ints, *words)
            return builder.bitcast(found, total.type)

        return _row_times_vectors(builder, block, args[0], scalars, vectors, product)

    return block(block, a, types.intp, b, types.intp), codegen


@intrinsic
def integers_less(typingctx, a, b):
    """float32(a - b) for two vectors of int32."""
    if not isinstance(a, Vector) or a != b:
        return None

    def codegen(context, builder, sig, args):
        ints = vector_of(sig.return_type.lanes, I32)
        less = builder.sub(*(builder.bitcast(x, ints) for x in args))
        return builder.sitofp(less, vector_of(sig.return_type.lanes))

    return a(a, a), codegen
