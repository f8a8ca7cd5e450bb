"""Values that stay in registers: blocks of sums as tuples, their rank-1 update, and 16-byte loads and stores.

Each element of a tuple of float32 is a register: no index is computed at run time, so the compiler never moves the
tuple to memory. Every function except `add4` exists twice: as LLVM IR for the GPU, and in Python for numba-cuda's
simulator, which runs kernels as Python. An index counts the elements of an array along its rows.
"""

from numba import float32

from tilewright.ops.core.gpu.simt import SIMULATED, inline

ZERO = float32(0)
ALIGNMENT = None if SIMULATED else 16  # bytes, of shared arrays; the simulator has no alignment


@inline
def add4(left, right):
    """The sums of two quads."""
    (a, b, c, d), (e, f, g, h) = left, right
    return a + e, b + f, c + g, d + h


if SIMULATED:

    def load(array, index):
        """The element at `index`."""
        return array.reshape(array.size)[index]

    def store(array, index, value):
        """Write the element at `index`."""
        array.reshape(array.size)[index] = value

    def load4(array, index):
        """The four elements from `index` on."""
        flat = array.reshape(array.size)
        return tuple(flat[index + i] for i in range(4))

    def store4(array, index, values):
        """Write four values to the elements from `index` on."""
        flat = array.reshape(array.size)
        for i, value in enumerate(values):
            flat[index + i] = value

    def rank1(block, column, row):
        """block (len(column) x len(row), row by row) + column x row, rounded once per element."""
        products = [float(x) * float(y) for x in column for y in row]
        return tuple(float32(float(total) + product) for total, product in zip(block, products, strict=True))

else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    VECTOR = ir.VectorType(ir.FloatType(), 4)
    WORD = ir.IntType(32)

    def _pointer(context, builder, array_type, array, index):
        """Pointer to an element. Unlike `array[index]` it does not test for a negative index."""
        return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])

    @intrinsic
    def load(typing, array, index):
        """The element at `index`."""

        def generate(context, builder, signature, args):
            kind, _ = signature.args
            return builder.load(_pointer(context, builder, kind, *args))

        return types.float32(array, index), generate

    @intrinsic
    def store(typing, array, index, value):
        """Write the element at `index`."""

        def generate(context, builder, signature, args):
            (kind, *_), (memory, at, element) = signature.args, args
            builder.store(element, _pointer(context, builder, kind, memory, at))
            return context.get_dummy_value()

        return types.void(array, index, types.float32), generate

    @intrinsic
    def load4(typing, array, index):
        """The four elements from `index` on; their address is a multiple of 16 bytes."""

        def generate(context, builder, signature, args):
            kind, _ = signature.args
            start = _pointer(context, builder, kind, *args)
            vector = builder.load(builder.bitcast(start, VECTOR.as_pointer()))
            vector.align = 16
            elements = [builder.extract_element(vector, WORD(i)) for i in range(4)]
            return context.make_tuple(builder, signature.return_type, elements)

        return types.UniTuple(types.float32, 4)(array, index), generate

    @intrinsic
    def store4(typing, array, index, values):
        """Write four values to the elements from `index` on, at a multiple of 16 bytes."""

        def generate(context, builder, signature, args):
            (kind, *_), (memory, at, quad) = signature.args, args
            vector = ir.Constant(VECTOR, ir.Undefined)
            for i in range(4):
                vector = builder.insert_element(vector, builder.extract_value(quad, i), WORD(i))
            start = _pointer(context, builder, kind, memory, at)
            builder.store(vector, builder.bitcast(start, VECTOR.as_pointer())).align = 16
            return context.get_dummy_value()

        return types.void(array, index, values), generate

    @intrinsic
    def rank1(typing, block, column, row):
        """block (len(column) x len(row), row by row) + column x row, one fused multiply-add per element."""

        def generate(context, builder, signature, args):
            sums, lefts, rights = (
                [builder.extract_value(value, i) for i in range(kind.count)]
                for value, kind in zip(args, signature.args, strict=True)
            )
            pairs = [(left, right) for left in lefts for right in rights]
            totals = [builder.fma(*pair, total) for pair, total in zip(pairs, sums, strict=True)]
            return context.make_tuple(builder, signature.return_type, totals)

        return block(block, column, row), generate
