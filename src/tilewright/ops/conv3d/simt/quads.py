"""LLVM IR of values in registers, which the generated device functions share. The simulator does not use it."""

from llvmlite import ir

from tilewright.ops.conv3d.simt.forms import QUAD

FLOAT, INDEX, WORD = ir.FloatType(), ir.IntType(64), ir.IntType(32)
VECTOR = ir.VectorType(FLOAT, QUAD)
ZERO = ir.Constant(FLOAT, 0.0)


def pointer(context, builder, kind, array, at):
    """Pointer to element `at` of an array of Numba's type `kind`."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [at])


def load4(builder, address):
    """The four float32 at an address, a multiple of 16 bytes."""
    vector = builder.load(builder.bitcast(address, VECTOR.as_pointer()))
    vector.align = 16
    return [builder.extract_element(vector, WORD(i)) for i in range(QUAD)]


def store4(builder, address, values):
    """Write four float32 to an address, a multiple of 16 bytes."""
    vector = ir.Constant(VECTOR, ir.Undefined)
    for i, value in enumerate(values):
        vector = builder.insert_element(vector, value, WORD(i))
    builder.store(vector, builder.bitcast(address, VECTOR.as_pointer())).align = 16


def unpacked(builder, value, count):
    """The first `count` elements of a tuple."""
    return [builder.extract_value(value, i) for i in range(count)]
