"""A kernel's arguments as words in memory, and a call with them: one thread writes a frame, any other thread calls.

A compiled kernel is a C function, int32 f(result *, excinfo **, arguments). It takes a scalar as one word, and an array
as seven or more: owner, parent, elements, bytes per element, address, shape, strides. The call always passes all words
of a frame, however many the kernel takes. That is safe in the calling conventions of x86-64 (System V) and AArch64: the
caller puts arguments on the stack and removes them, and floating-point arguments are counted apart from all others.
Source: numba.core.callconv.
"""

from typing import NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils, datamodel, errors
from numba.core.callconv import excinfo_ptr_t
from numba.extending import intrinsic

from tilewright.simd.instruction import instruction, offset_by
from tilewright.simd.types import DOUBLE, FLOAT, I8, I32, I64, pointer

FLOATS, INTEGERS = 8, 120  # most floating-point arguments, which are first in a frame, and most words of all others
FRAME = FLOATS + INTEGERS


class ArrayWords(NamedTuple):
    """Which word of a one-dimensional array's seven holds what."""

    owner: int
    parent: int
    size: int
    itemsize: int
    address: int
    length: int
    stride: int


ARRAY = ArrayWords(*range(7))


def _is_float(value) -> bool:
    return value.type in (FLOAT, DOUBLE)


def _packer(context, kinds) -> datamodel.ArgPacker:
    """Numba's object that flattens arguments; TypingError for arguments that do not fit a frame."""
    packer = datamodel.ArgPacker(context.data_model_manager, kinds)
    floats = [flat for flat in packer.argument_types if flat in (FLOAT, DOUBLE)]
    others = [flat for flat in packer.argument_types if flat not in (FLOAT, DOUBLE)]
    odd = [flat for flat in others if flat != I64 and not isinstance(flat, ir.PointerType)]
    if odd or len(floats) > FLOATS or len(others) > INTEGERS:
        raise errors.TypingError(f"threads run kernels of arrays, int64 and some floats, not of {kinds}")
    return packer


def _as_word(builder, value):
    """A flat argument's 64 bits."""
    if isinstance(value.type, ir.PointerType):
        return builder.ptrtoint(value, I64)
    if value.type == FLOAT:
        return builder.zext(builder.bitcast(value, I32), I64)
    return builder.bitcast(value, I64)


@intrinsic
def write_frame(typing_context, words, at, arguments):
    """Flatten a tuple of arguments to `words` (int64) from index `at`; returns how many words are not floats."""

    def generate(context, builder, sig, args):
        (array, first, values), (array_type, _, tuple_type) = args, sig.args
        kinds = list(tuple_type)
        flat = _packer(context, kinds).as_arguments(builder, cgutils.unpack_tuple(builder, values, len(kinds)))
        floats = [value for value in flat if _is_float(value)]
        integers = [value for value in flat if not _is_float(value)]
        frame = pointer(context, builder, array_type, array, first)
        for start, group in ((0, floats), (FLOATS, integers)):
            for word, value in enumerate(group, start):
                builder.store(_as_word(builder, value), offset_by(builder, frame, word))
        return I64(len(integers))

    return types.int64(words, types.int64, arguments), generate


@instruction(lambda address, words, at, raised: types.int64(types.int64, words, types.int64, types.int64))
def call_frame(builder, address, words, at, raised):
    """Call the kernel at an address with the frame at `words[at]`; returns its return code.

    words[raised]: receives the exception's description, for `propagate`.
    """
    frame = words.at(at)
    result = cgutils.alloca_once_value(builder, ir.Constant(I8.as_pointer(), None))
    excinfo = cgutils.alloca_once_value(builder, ir.Constant(excinfo_ptr_t, None))
    kinds = [DOUBLE] * FLOATS + [I64] * INTEGERS
    function = ir.FunctionType(I32, [result.type, excinfo.type, *kinds])
    found = [builder.load(offset_by(builder, frame, word)) for word in range(FRAME)]
    values = [builder.bitcast(word, kind) for word, kind in zip(found, kinds, strict=True)]
    code = builder.call(builder.inttoptr(address, function.as_pointer()), [result, excinfo, *values])
    builder.store(builder.ptrtoint(builder.load(excinfo), I64), words.at(raised))
    return builder.sext(code, I64)


@intrinsic
def propagate(typing_context, code, raised):
    """Return from the kernel that calls this, with the exception of the kernel that `call_frame` called, if any."""

    def generate(context, builder, sig, args):
        code, excinfo = args
        excinfo = builder.inttoptr(excinfo, excinfo_ptr_t)
        status = context.call_conv._get_return_status(builder, builder.trunc(code, I32), excinfo)
        with builder.if_then(status.is_error, likely=False):
            context.call_conv.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate
