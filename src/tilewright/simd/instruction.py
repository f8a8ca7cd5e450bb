"""How this library declares an instruction: a function of a kernel that becomes a few LLVM instructions.

    @instruction(lambda array, index, lanes: vector(lanes)(array, types.intp, lanes))
    def load(builder, array, index, lanes):
        '''`array.flat[index : index + lanes]`, at any alignment.'''
        return load_vector(builder, array.at(index), lanes)

Numba compiles a call of an intrinsic in two steps, and each half of the declaration serves one of them. First Numba
infers types: the lambda maps the types of the arguments to a signature, `result(argument, ...)`, or to None where they
do not fit. Then Numba generates code: the function below it gets an LLVM builder and the operands. `builder.fadd(a, b)`
appends an instruction to the kernel and returns the name of its result. So a Python loop in such a function is unrolled
code, and a Python `if` chooses code at compile time.

What the function gets for each argument depends on the argument's type in the signature:

    array                   `Memory`, which addresses its elements
    compile-time constant   a Python int: `lanes` above
    `Block`                 `Registers`, a table of LLVM vectors
    everything else         the LLVM value

It returns an LLVM value, or Registers for a block, or None for void.
"""

import functools
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tilewright.simd.types import I64, Block, Vector


class Memory(NamedTuple):
    """An array while code is generated. start: LLVM's pointer to its first element. dtype: Numba's type of one."""

    builder: Any
    start: Any
    dtype: types.Type

    def at(self, index):
        """The pointer to `array.flat[index]`."""
        return self.builder.gep(self.start, [index])


class Registers:
    """A block while code is generated: `block[i, j]` is vector j of row i, an LLVM value. Assigning to it takes effect
    in the block that the instruction returns."""

    def __init__(self, rows: int, vectors: int, lanes: int, values: list):
        self.rows, self.vectors, self.lanes = rows, vectors, lanes
        self.positions = [(i, j) for i in range(rows) for j in range(vectors)]
        self._table = dict(zip(self.positions, values, strict=True))

    def __getitem__(self, position: tuple[int, int]):
        return self._table[position]

    def __setitem__(self, position: tuple[int, int], vector) -> None:
        self._table[position] = vector

    def packed(self, builder):
        """The block as one LLVM value, an array of vectors."""
        values = list(self._table.values())
        result = ir.Constant(ir.ArrayType(values[0].type, len(values)), ir.Undefined)
        for n, value in enumerate(values):
            result = builder.insert_value(result, value, n)
        return result


def vector(lanes) -> Vector:
    """The type of a float32 vector whose width is a compile-time constant."""
    return Vector(lanes.literal_value)


def same(first, *others):
    """The signature of an instruction from equal vectors to one like them."""
    return first(first, *others) if isinstance(first, Vector) and set(others) <= {first} else None


def instruction(signature, name: str = "", doc: str = ""):
    """Declare an instruction; the module's docstring says how. name, doc: for a lambda or one of a family."""

    def declare(emit):
        emit.__name__, emit.__doc__ = name or emit.__name__, doc or emit.__doc__

        def generate(context, builder, sig, args):
            kinds = zip(sig.args, args, strict=True)
            result = emit(builder, *[_operand(context, builder, kind, value) for kind, value in kinds])
            if isinstance(result, Registers):
                return result.packed(builder)
            return context.get_dummy_value() if result is None else result

        @functools.wraps(emit)  # Numba reads the names of the parameters
        def typed(typing_context, *argument_types):
            found = signature(*argument_types)
            return None if found is None else (found, generate)

        return intrinsic(prefer_literal=True)(typed)

    return declare


def _operand(context, builder, kind, value):
    """What `emit` gets for an argument; see the module's docstring."""
    if isinstance(kind, types.Array):
        return Memory(builder, context.make_array(kind)(context, builder, value).data, kind.dtype)
    if isinstance(kind, types.IntegerLiteral):
        return kind.literal_value
    if isinstance(kind, Block):
        values = [builder.extract_value(value, n) for n in range(kind.rows * kind.vectors)]
        return Registers(kind.rows, kind.vectors, kind.lanes, values)
    return value


def offset_by(builder, start, distance: int):
    """The pointer `distance` elements after `start`."""
    return builder.gep(start, [I64(distance)])
