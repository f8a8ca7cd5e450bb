"""The two register types that Numba learns here: a vector, and a block of vectors.

A `Vector(lanes)` is one value of `lanes` float32 numbers, `<lanes x float>` in LLVM. LLVM splits a vector wider than
the machine's registers, so 16 lanes are correct everywhere and fast where AVX-512 is. A `Block(rows, vectors, lanes)`
is `rows x vectors` of them: the tile of C that a matrix micro-kernel keeps in registers. Both live in local variables
only: they cannot be stored in arrays, returned to Python or passed from it.
"""

from typing import get_type_hints

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model

# how kernels declare their arrays; a read-only array accepts a writable one
INPUT = types.Array(types.float32, 1, "C", readonly=True)
INPUT_2D = types.Array(types.float32, 2, "A", readonly=True)
MATRIX = types.Array(types.float32, 2, "C", readonly=True)
CONTIGUOUS = types.Array(types.float32, 2, "C")
OUTPUT = types.Array(types.float32, 1, "C")
OUTPUT_2D = types.Array(types.float32, 2, "A")
ROUNDED_2D = types.Array(types.uint16, 2, "A")  # bfloat16
INDICES = types.Array(types.int64, 1, "C", readonly=True)
COUNTERS = types.Array(types.int64, 1, "C")  # what threads share
TASKS = COUNTERS  # what `draw` takes a thread's next task from: [next task, number of tasks]


def record(kind: type) -> types.NamedTuple:
    """The Numba type of a NamedTuple of sizes, for a kernel's signature: a field annotated `int` is an int64, one
    annotated `float` a float32. A kernel reads `job.M`, and its caller writes `Job(M=M, ...)`."""
    kinds = {int: types.int64, float: types.float32}
    fields = [kinds[annotation] for annotation in get_type_hints(kind).values()]
    uniform = len(set(fields)) == 1  # as Numba types a value of the record
    return types.NamedUniTuple(fields[0], len(fields), kind) if uniform else types.NamedTuple(fields, kind)


FLOAT = ir.FloatType()
I32 = ir.IntType(32)
I64 = ir.IntType(64)


class Vector(types.Type):
    """`lanes` float32 numbers in one register."""

    def __init__(self, lanes: int):
        self.lanes = lanes
        super().__init__(f"Vector({lanes})")


class Block(types.Type):
    """`rows x vectors` registers of `lanes` float32 numbers: element [i, j] is lane j % lanes of vector j // lanes
    of row i."""

    def __init__(self, rows: int, vectors: int, lanes: int):
        self.rows, self.vectors, self.lanes = rows, vectors, lanes
        super().__init__(f"Block({rows}, {vectors}, {lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, vector_of(fe_type.lanes))


@register_model(Block)
class _BlockModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, ir.ArrayType(vector_of(fe_type.lanes), fe_type.rows * fe_type.vectors))


def vector_of(lanes: int, element=FLOAT) -> ir.VectorType:
    """LLVM's vector type."""
    return ir.VectorType(element, lanes)


def filled(vector: ir.VectorType, value) -> ir.Constant:
    """A constant vector with every lane equal."""
    return ir.Constant(vector, [value] * vector.count)


def pointer(context, builder, array_type, array, index):
    """Address of `array.flat[index]`, raw: no wrap-around of negative indices, which would cost a compare a load."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


def broadcast_lane(builder, scalar, lanes: int):
    """`scalar` in every lane; LLVM folds it into the operand of a following FMA where the machine can."""
    vector = vector_of(lanes, scalar.type)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), filled(vector_of(lanes, I32), 0))


def call(builder, name: str, result, *args):
    """Call LLVM's intrinsic `name`."""
    signature = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), args)


def lane_mask(builder, count, lanes: int):
    """`<lanes x i1>` with the first `count` lanes set; count may be negative or beyond `lanes`."""
    ramp = ir.Constant(vector_of(lanes, I64), list(range(lanes)))
    return builder.icmp_signed("<", ramp, broadcast_lane(builder, count, lanes))
