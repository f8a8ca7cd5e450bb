"""A kernel's arguments as words in memory, and a call with them: one thread writes a frame, any other calls.

A compiled kernel is a C function, int32 f(result *, excinfo **, arguments), that takes an array as seven or more words
(owner, parent, elements, bytes of one, address, shape, strides) and a number as one. All words of a frame are passed,
whatever a kernel takes: in the calling conventions of x86-64 (System V) and AArch64 the caller puts arguments on the
stack and removes them, and floating-point ones are counted apart from all others. Source: numba.core.callconv.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils, datamodel, errors
from numba.core.callconv import excinfo_ptr_t
from numba.extending import intrinsic

from tilewright.simd.types import I32, I64, pointer

FLOATS, INTEGERS = 8, 120  # at most: floating-point arguments, which stand first in a frame, then words of all others
FRAME = FLOATS + INTEGERS
OWNER, PARENT, SIZE, ADDRESS, LENGTH, ARRAY = 0, 1, 2, 4, 5, 7  # words of a flat array, and how many

_FLOATING = (ir.FloatType, ir.DoubleType)


def _packer(context, kinds) -> datamodel.ArgPacker:
    """What flattens arguments; TypingError for some that do not fit a frame."""
    packer = datamodel.ArgPacker(context.data_model_manager, kinds)
    floats = [flat for flat in packer.argument_types if isinstance(flat, _FLOATING)]
    others = [flat for flat in packer.argument_types if not isinstance(flat, _FLOATING)]
    odd = [flat for flat in others if flat != I64 and not isinstance(flat, ir.PointerType)]
    if odd or len(floats) > FLOATS or len(others) > INTEGERS:
        raise errors.TypingError(f"threads run kernels of arrays, int64 and some floats, not of {kinds}")
    return packer


def _as_word(builder, value):
    """A flat argument's 64 bits."""
    if isinstance(value.type, ir.PointerType):
        return builder.ptrtoint(value, I64)
    if isinstance(value.type, ir.FloatType):
        return builder.zext(builder.bitcast(value, I32), I64)
    return builder.bitcast(value, I64)


@intrinsic
def write_frame(typingctx, words, at, arguments):
    """Flatten a tuple of arguments to `words` (int64) from `at`; gives how many integers they are."""

    def codegen(context, builder, sig, args):
        kinds = list(sig.args[2])
        values = cgutils.unpack_tuple(builder, args[2], len(kinds))
        flat = _packer(context, kinds).as_arguments(builder, values)
        floats = [value for value in flat if isinstance(value.type, _FLOATING)]
        integers = [value for value in flat if not isinstance(value.type, _FLOATING)]
        frame = pointer(context, builder, sig.args[0], args[0], args[1])
        for first, group in ((0, floats), (FLOATS, integers)):
            for word, value in enumerate(group, first):
                builder.store(_as_word(builder, value), builder.gep(frame, [I64(word)]))
        return I64(len(integers))

    return types.int64(words, types.int64, arguments), codegen


@intrinsic
def call_frame(typingctx, address, words, at, raised):
    """Call the kernel at an address with the frame at `words[at]`; gives its return code.

    words[raised]: what `propagate` wants beside it.
    """

    def codegen(context, builder, sig, args):
        frame, note = (pointer(context, builder, sig.args[1], args[1], place) for place in args[2:])
        result = cgutils.alloca_once_value(builder, ir.Constant(ir.IntType(8).as_pointer(), None))
        excinfo = cgutils.alloca_once_value(builder, ir.Constant(excinfo_ptr_t, None))
        kinds = [ir.DoubleType()] * FLOATS + [I64] * INTEGERS
        function = ir.FunctionType(I32, [result.type, excinfo.type, *kinds])
        found = [builder.load(builder.gep(frame, [I64(word)])) for word in range(FRAME)]
        values = [builder.bitcast(word, kind) for word, kind in zip(found, kinds, strict=True)]
        code = builder.call(builder.inttoptr(args[0], function.as_pointer()), [result, excinfo, *values])
        builder.store(builder.ptrtoint(builder.load(excinfo), I64), note)
        return builder.sext(code, I64)

    return types.int64(types.int64, words, types.int64, types.int64), codegen


@intrinsic
def propagate(typingctx, code, raised):
    """Return from the kernel that calls this, with the exception of the one that `call_frame` called, if it raised."""

    def codegen(context, builder, sig, args):
        code, excinfo = builder.trunc(args[0], I32), builder.inttoptr(args[1], excinfo_ptr_t)
        status = context.call_conv._get_return_status(builder, code, excinfo)
        with builder.if_then(status.is_error, likely=False):
            context.call_conv.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen
