"""Vectors of float64 for correlate's kernels: numbers of any dtype come in as float64, and go out as any dtype.

Numbers are named by an address, an integer, and an index in elements: an array that is handed from function to function
would be counted each time, at 20 cycles a count. A tile is the address of a thread's scratch, seen as float64. An
element of a caller's array may be misaligned. A `Sums(vectors, lanes)` is that many registers of float64 side by side.
Nothing here multiplies and adds in one rounding: a sum has the bits that plain C has.
"""

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from tilewright.ops.correlate.operands import NEGATED
from tilewright.simd.types import broadcast_lane, filled, vector_of

DOUBLE, I64 = ir.DoubleType(), ir.IntType(64)
WORD = 8  # bytes of a float64, the alignment of a tile
FLOATS = {"float32": ir.FloatType(), "float64": DOUBLE}


class Sums(types.Type):
    """`vectors` registers of `lanes` float64 numbers, neighbours in a tile."""

    def __init__(self, vectors: int, lanes: int):
        self.vectors, self.lanes = vectors, lanes
        super().__init__(f"Sums({vectors}, {lanes})")


@register_model(Sums)
class _SumsModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, ir.ArrayType(vector_of(fe_type.lanes, DOUBLE), fe_type.vectors))


def _vectors(builder, sums_type, sums):
    return [builder.extract_value(sums, i) for i in range(sums_type.vectors)]


def _packed(builder, vectors):
    sums = ir.Constant(ir.ArrayType(vectors[0].type, len(vectors)), ir.Undefined)
    for i, vector in enumerate(vectors):
        sums = builder.insert_value(sums, vector, i)
    return sums


def _at(builder, address, index, element=DOUBLE):
    return builder.gep(builder.inttoptr(address, element.as_pointer()), [index])


def _tile_loads(builder, sums_type, address, index):
    """One load a vector of `sums_type`, from float64 number `index` on."""
    vector = vector_of(sums_type.lanes, DOUBLE)
    start = _at(builder, address, index)
    places = [builder.gep(start, [I64(i * sums_type.lanes)]) for i in range(sums_type.vectors)]
    return [builder.load(builder.bitcast(place, vector.as_pointer()), align=WORD) for place in places]


@intrinsic
def address_of(typingctx, array):
    """The address of an array's first element."""

    def codegen(context, builder, sig, args):
        return builder.ptrtoint(context.make_array(sig.args[0])(context, builder, args[0]).data, I64)

    return types.intp(array), codegen


def _fetch(name: str, element, numba_type):
    def typing(typingctx, address, index):
        def codegen(context, builder, sig, args):
            return builder.load(_at(builder, *args, element), align=WORD)

        return numba_type(types.intp, types.intp), codegen

    typing.__name__, typing.__doc__ = name, f"The {numba_type} of that index behind the address."
    return intrinsic(typing)


fetch_integer = _fetch("fetch_integer", I64, types.int64)
fetch_double = _fetch("fetch_double", DOUBLE, types.float64)


@intrinsic(prefer_literal=True)
def start_sums(typingctx, value, vectors, lanes):
    """`value` (float64) in all lanes of `vectors` vectors."""
    kind = Sums(vectors.literal_value, lanes.literal_value)

    def codegen(context, builder, sig, args):
        return _packed(builder, [broadcast_lane(builder, args[0], kind.lanes)] * kind.vectors)

    return kind(types.float64, vectors, lanes), codegen


@intrinsic(prefer_literal=True)
def load_sums(typingctx, tile, index, vectors, lanes):
    """vectors * lanes numbers of the tile."""
    kind = Sums(vectors.literal_value, lanes.literal_value)

    def codegen(context, builder, sig, args):
        return _packed(builder, _tile_loads(builder, kind, args[0], args[1]))

    return kind(types.intp, types.intp, vectors, lanes), codegen


@intrinsic
def store_sums(typingctx, tile, index, sums):
    """All vectors to the tile."""

    def codegen(context, builder, sig, args):
        start = _at(builder, args[0], args[1])
        for i, vector in enumerate(_vectors(builder, sums, args[2])):
            place = builder.gep(start, [I64(i * sums.lanes)])
            builder.store(vector, builder.bitcast(place, vector.type.as_pointer()), align=WORD)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, sums), codegen


def _vectorwise(name: str, emit, doc: str):
    """An intrinsic of two equal `Sums`, vector by vector."""

    def typing(typingctx, a, b):
        def codegen(context, builder, sig, args):
            pairs = zip(*(_vectors(builder, a, x) for x in args), strict=True)
            return _packed(builder, [emit(builder, x, y) for x, y in pairs])

        return (a(a, a), codegen) if isinstance(a, Sums) and a == b else None

    typing.__name__, typing.__doc__ = name, doc
    return intrinsic(typing)


add_sums = _vectorwise("add_sums", lambda builder, a, b: builder.fadd(a, b), "a + b.")
subtract_sums = _vectorwise("subtract_sums", lambda builder, a, b: builder.fsub(a, b), "a - b.")
divide_sums = _vectorwise("divide_sums", lambda builder, a, b: builder.fdiv(a, b), "a / b.")


@intrinsic
def add_product(typingctx, sums, tile, index, weight):
    """sums + tile[index ...] * weight: a product, rounded, then a sum, rounded."""

    def codegen(context, builder, sig, args):
        factor = broadcast_lane(builder, args[3], sums.lanes)
        loaded = _tile_loads(builder, sums, args[1], args[2])
        totals = _vectors(builder, sums, args[0])
        added = [builder.fadd(total, builder.fmul(x, factor)) for total, x in zip(totals, loaded, strict=True)]
        return _packed(builder, added)

    return sums(sums, types.intp, types.intp, types.float64), codegen


def _add_pair(name: str, combine, doc: str):
    def typing(typingctx, sums, tile, index, partner, weight):
        def codegen(context, builder, sig, args):
            factor = broadcast_lane(builder, args[4], sums.lanes)
            a, b = (_tile_loads(builder, sums, args[1], at) for at in args[2:4])
            totals = _vectors(builder, sums, args[0])
            terms = [builder.fmul(combine(builder, x, y), factor) for x, y in zip(a, b, strict=True)]
            return _packed(builder, [builder.fadd(total, term) for total, term in zip(totals, terms, strict=True)])

        return sums(sums, types.intp, types.intp, types.intp, types.float64), codegen

    typing.__name__, typing.__doc__ = name, doc
    return intrinsic(typing)


add_even_pair = _add_pair(
    "add_even_pair",
    lambda builder, a, b: builder.fadd(a, b),
    "sums + (tile[index ...] + tile[partner ...]) * weight: two taps of a symmetric kernel.",
)
add_odd_pair = _add_pair(
    "add_odd_pair",
    lambda builder, a, b: builder.fsub(a, b),
    "sums + (tile[index ...] - tile[partner ...]) * weight: two taps of an antisymmetric kernel.",
)


def _element(kind: str):
    """LLVM's type of an element in memory."""
    return FLOATS.get(kind) or ir.IntType(8 * np.dtype(kind.split()[0]).itemsize)


@intrinsic(prefer_literal=True)
def read(typingctx, address, index, kind, lanes):
    """`lanes` elements of dtype `kind` from number `index` behind `address`, as float64."""
    name, result = kind.literal_value, Sums(1, lanes.literal_value)

    def codegen(context, builder, sig, args):
        element = _element(name)
        start = _at(builder, args[0], args[1], element)
        vector = vector_of(result.lanes, element)
        loaded = builder.load(builder.bitcast(start, vector.as_pointer()), align=1)
        wide = vector_of(result.lanes, DOUBLE)
        if name == "float64":
            value = loaded
        elif name == "float32":
            value = builder.fpext(loaded, wide)
        else:
            value = builder.sitofp(loaded, wide) if name.startswith("int") else builder.uitofp(loaded, wide)
        return _packed(builder, [value])

    return result(types.intp, types.intp, kind, lanes), codegen


@intrinsic(prefer_literal=True)
def write(typingctx, address, index, value, kind):
    """One vector of float64 to elements of dtype `kind` from number `index` behind `address`, cast as C does on x86.

    Integers are truncated and keep their low bits; what a 32-bit integer (64-bit for the three largest) does not hold
    becomes the smallest integer before that. A bool is whether the low byte is not zero. NaN is such an integer.
    """
    name = kind.literal_value

    def codegen(context, builder, sig, args):
        (vector,) = _vectors(builder, value, args[2])
        cast = _cast(builder, vector, name)
        start = _at(builder, args[0], args[1], cast.type.element)
        builder.store(cast, builder.bitcast(start, cast.type.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, value, kind), codegen


def _cast(builder, vector, kind: str):
    """float64 lanes as elements of `kind`."""
    lanes = vector.type.count
    element = vector_of(lanes, _element(kind))
    if kind in FLOATS:
        return vector if kind == "float64" else builder.fptrunc(vector, element)
    if kind == "uint64":
        return _unsigned(builder, vector)
    if kind == NEGATED:
        turned = builder.neg(_unsigned(builder, builder.fneg(vector)))
        positive = builder.fcmp_ordered(">", vector, filled(vector.type, -1.0))
        return builder.select(positive, _unsigned(builder, vector), turned)
    if kind == "int64":
        return _truncated(builder, vector, 64)
    if kind == "uint32":
        return builder.trunc(_truncated(builder, vector, 64), element)
    whole = _truncated(builder, vector, 32)
    if kind == "int32":
        return whole
    low = builder.trunc(whole, element)
    return builder.zext(builder.icmp_signed("!=", low, filled(element, 0)), element) if kind == "bool" else low


def _truncated(builder, vector, bits: int):
    """Towards zero; the smallest integer for what is out of range, as CVTTSD2SI gives it."""
    integers, least = vector_of(vector.type.count, ir.IntType(bits)), -(2 ** (bits - 1))
    below = max(least - 1.0, math.nextafter(least, -math.inf), key=abs)  # the largest float64 that is too small
    fits = builder.fcmp_ordered(">", vector, filled(vector.type, below))
    fits = builder.and_(fits, builder.fcmp_ordered("<", vector, filled(vector.type, -float(least))))
    return builder.select(fits, builder.fptosi(vector, integers), filled(integers, least))


def _unsigned(builder, vector):
    """64-bit integers up to 2**64; negative ones keep their low bits."""
    half = 2.0**63
    large = builder.fcmp_ordered(">=", vector, filled(vector.type, half))
    beyond = _truncated(builder, builder.fsub(vector, filled(vector.type, half)), 64)
    flipped = builder.xor(beyond, filled(beyond.type, -(2**63)))
    return builder.select(large, flipped, _truncated(builder, vector, 64))
