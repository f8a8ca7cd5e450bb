"""Values that stay in registers: blocks of sums as tuples, their rank-1 update, and 16-byte loads and stores.

A tuple of float32 is so many registers: nothing indexes it at run time, so nothing can move it to memory. All but
`add4` exist twice: as LLVM IR for the GPU, and in Python for numba-cuda's simulator, which runs kernels as Python.
"""

from numba import float32

from tilewright.ops.core.gpu.simt import SIMULATED, inline

ZERO = float32(0)
ALIGNMENT = None if SIMULATED else 16  # bytes, of shared arrays; the simulator knows none


@inline
def add4(left, right):
    """The sums of two quads."""
    return left[0] + right[0], left[1] + right[1], left[2] + right[2], left[3] + right[3]


if SIMULATED:

    def load(array, at):
        """Element `at` of an array, counted along its rows."""
        return array.reshape(array.size)[at]

    def store(array, at, value):
        """Write element `at` of an array, counted along its rows."""
        array.reshape(array.size)[at] = value

    def load4(array, at):
        """Elements at .. at + 3 of an array, counted along its rows."""
        flat = array.reshape(array.size)
        return tuple(flat[at + i] for i in range(4))

    def store4(array, at, values):
        """Write four values to elements at .. at + 3 of an array, counted along its rows."""
        flat = array.reshape(array.size)
        for i in range(4):
            flat[at + i] = values[i]

    def rank1(block, column, row):
        """block (len(column) x len(row), by rows) + column x row, one rounding an element."""
        products = [float(x) * float(y) for x in column for y in row]
        return tuple(float32(float(total) + product) for total, product in zip(block, products, strict=True))

else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    VECTOR = ir.VectorType(ir.FloatType(), 4)
    WORD = ir.IntType(32)

    def _address(context, builder, signature, args):
        """Pointer to element args[1] of the array args[0]. Unlike array[at], it never asks whether that is negative."""
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.gep(array.data, [args[1]])

    def _vector(context, builder, signature, args):
        """The same, as a pointer to four."""
        return builder.bitcast(_address(context, builder, signature, args), VECTOR.as_pointer())

    @intrinsic
    def load(typing, array, at):
        """Element `at` of an array, counted along its rows."""
        return types.float32(array, at), lambda context, builder, *rest: builder.load(_address(context, builder, *rest))

    @intrinsic
    def store(typing, array, at, value):
        """Write element `at` of an array, counted along its rows."""

        def generate(context, builder, signature, args):
            builder.store(args[2], _address(context, builder, signature, args))
            return context.get_dummy_value()

        return types.void(array, at, types.float32), generate

    @intrinsic
    def load4(typing, array, at):
        """Elements at .. at + 3 of an array, counted along its rows; their address is a multiple of 16 bytes."""

        def generate(context, builder, signature, args):
            vector = builder.load(_vector(context, builder, signature, args))
            vector.align = 16
            return context.make_tuple(
                builder, signature.return_type, [builder.extract_element(vector, WORD(i)) for i in range(4)]
            )

        return types.UniTuple(types.float32, 4)(array, at), generate

    @intrinsic
    def store4(typing, array, at, values):
        """Write four values to elements at .. at + 3 of an array, at a multiple of 16 bytes."""

        def generate(context, builder, signature, args):
            vector = ir.Constant(VECTOR, ir.Undefined)
            for i in range(4):
                vector = builder.insert_element(vector, builder.extract_value(args[2], i), WORD(i))
            builder.store(vector, _vector(context, builder, signature, args)).align = 16
            return context.get_dummy_value()

        return types.void(array, at, values), generate

    @intrinsic
    def rank1(typing, block, column, row):
        """block (len(column) x len(row), by rows) + column x row, a fused multiply-add an element."""

        def generate(context, builder, signature, args):
            sums, lefts, rights = (
                [builder.extract_value(value, i) for i in range(kind.count)]
                for value, kind in zip(args, signature.args, strict=True)
            )
            pairs = [(left, right) for left in lefts for right in rights]
            totals = [builder.fma(*pair, total) for pair, total in zip(pairs, sums, strict=True)]
            return context.make_tuple(builder, signature.return_type, totals)

        return block(block, column, row), generate
