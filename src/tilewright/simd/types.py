"""The types of this library, and the few LLVM constructs that its instructions share.

A `Vector(lanes)` is one value of `lanes` float32 or float64 elements, `<lanes x float>` in LLVM. LLVM splits a vector
that is wider than the machine's registers: 16 lanes are correct everywhere, and fast where AVX-512 is. A
`Block(rows, vectors, lanes)` is a table of rows x vectors of them: the tile of C that a matrix micro-kernel keeps in
registers. Both exist in local variables only. They cannot be stored in arrays, returned to Python or passed from it.
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
COUNTERS = types.Array(types.int64, 1, "C")  # shared by threads
TASKS = COUNTERS  # [next task, number of tasks], for `draw`


def record(kind: type) -> types.NamedTuple:
    """The Numba type of a NamedTuple of sizes, for a kernel's signature: a field annotated `int` is an int64, one
    annotated `float` a float32. A kernel reads `job.M`, and its caller writes `Job(M=M, ...)`."""
    kinds = {int: types.int64, float: types.float32}
    fields = [kinds[annotation] for annotation in get_type_hints(kind).values()]
    uniform = len(set(fields)) == 1  # as Numba types a value of the record
    return types.NamedUniTuple(fields[0], len(fields), kind) if uniform else types.NamedTuple(fields, kind)


FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()
BIT, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
SUFFIXES = {FLOAT: "f32", DOUBLE: "f64", I16: "i16"}  # of LLVM's intrinsics


class Vector(types.Type):
    """`lanes` elements in one register: float32, or float64 where `double`."""

    def __init__(self, lanes: int, double: bool = False):
        self.lanes, self.double = lanes, double
        super().__init__(f"{'Doubles' if double else 'Vector'}({lanes})")


class Block(types.Type):
    """`rows x vectors` registers of `lanes` float32: element [i, j] is lane j % lanes of vector j // lanes of row i."""

    def __init__(self, rows: int, vectors: int, lanes: int):
        self.rows, self.vectors, self.lanes = rows, vectors, lanes
        super().__init__(f"Block({rows}, {vectors}, {lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, vector_of(fe_type.lanes, DOUBLE if fe_type.double else FLOAT))


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


def lane_numbers(first: int, count: int) -> ir.Constant:
    """The mask of a shuffle that picks `count` lanes from lane `first` on."""
    return ir.Constant(vector_of(count, I32), list(range(first, first + count)))


def pointer(context, builder, array_type, array, index):
    """Address of `array.flat[index]`. Negative indices do not wrap around: that would cost a comparison per load."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


def broadcast_lane(builder, scalar, lanes: int):
    """`scalar` in every lane; LLVM folds it into the operand of a following FMA where the machine can."""
    vector = vector_of(lanes, scalar.type)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), filled(vector_of(lanes, I32), 0))


def call(builder, name: str, result, *args):
    """Call LLVM's intrinsic `name`."""
    signature = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), args)


def name_of(vector: ir.VectorType) -> str:
    """How the names of LLVM's intrinsics spell a vector type: `v16f32`."""
    return f"v{vector.count}{SUFFIXES[vector.element]}"


def lanewise(builder, operation: str, first, *others):
    """LLVM's intrinsic `llvm.<operation>` on equal vectors, lane by lane."""
    return call(builder, f"llvm.{operation}.{name_of(first.type)}", first.type, first, *others)


def lane_mask(builder, count, lanes: int):
    """`<lanes x i1>` with the first `count` lanes set; count may be negative or beyond `lanes`."""
    ramp = ir.Constant(vector_of(lanes, I64), list(range(lanes)))
    return builder.icmp_signed("<", ramp, broadcast_lane(builder, count, lanes))
