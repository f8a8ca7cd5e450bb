"""Vectors of float64 for correlate's kernels: loads from any dtype as float64, stores as any dtype.

An element is named by an address, an integer, and an index in elements, because a caller's array may have any dtype and
may be misaligned. A tile is the address of a thread's scratch, used as float64. A `Sums(vectors, lanes)` is that many
registers of float64 side by side. Products are rounded before they are added, as in plain C without fused operations.
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
    """`vectors` registers of `lanes` float64, neighbours in a tile."""

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
    kinds = [vector.type for vector in vectors]
    sums = ir.Constant(ir.ArrayType(kinds[0], len(kinds)), ir.Undefined)
    for i, vector in enumerate(vectors):
        sums = builder.insert_value(sums, vector, i)
    return sums


def _at(builder, address, index, element=DOUBLE):
    return builder.gep(builder.inttoptr(address, element.as_pointer()), [index])


def _tile_loads(builder, sums_type, address, index):
    """One load per vector of `sums_type`, from float64 `index` on."""
    vector = vector_of(sums_type.lanes, DOUBLE)
    start = _at(builder, address, index)
    pointers = [builder.gep(start, [I64(i * sums_type.lanes)]) for i in range(sums_type.vectors)]
    return [builder.load(builder.bitcast(pointer, vector.as_pointer()), align=WORD) for pointer in pointers]


@intrinsic
def address_of(typingctx, array):
    """The address of an array's first element."""

    def codegen(context, builder, sig, args):
        (value,) = args
        return builder.ptrtoint(context.make_array(array)(context, builder, value).data, I64)

    return types.intp(array), codegen


def _fetch(name: str, element, numba_type):
    def typing(typingctx, address, index):
        def codegen(context, builder, sig, args):
            return builder.load(_at(builder, *args, element), align=WORD)

        return numba_type(types.intp, types.intp), codegen

    typing.__name__, typing.__doc__ = name, f"Element `index` of the {numba_type} array at an address."
    return intrinsic(typing)


fetch_integer = _fetch("fetch_integer", I64, types.int64)
fetch_double = _fetch("fetch_double", DOUBLE, types.float64)


@intrinsic(prefer_literal=True)
def start_sums(typingctx, value, vectors, lanes):
    """`value` (float64) in all lanes of `vectors` vectors."""
    kind = Sums(vectors.literal_value, lanes.literal_value)

    def codegen(context, builder, sig, args):
        scalar, *_ = args
        return _packed(builder, [broadcast_lane(builder, scalar, kind.lanes)] * kind.vectors)

    return kind(types.float64, vectors, lanes), codegen


@intrinsic(prefer_literal=True)
def load_sums(typingctx, tile, index, vectors, lanes):
    """vectors * lanes elements of the tile, from `index` on."""
    kind = Sums(vectors.literal_value, lanes.literal_value)

    def codegen(context, builder, sig, args):
        address, first, *_ = args
        return _packed(builder, _tile_loads(builder, kind, address, first))

    return kind(types.intp, types.intp, vectors, lanes), codegen


@intrinsic
def store_sums(typingctx, tile, index, sums):
    """Store all vectors to the tile, from `index` on."""

    def codegen(context, builder, sig, args):
        address, first, value = args
        start = _at(builder, address, first)
        for i, vector in enumerate(_vectors(builder, sums, value)):
            pointer = builder.gep(start, [I64(i * sums.lanes)])
            builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer()), align=WORD)
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
        value, address, first, scalar = args
        factor = broadcast_lane(builder, scalar, sums.lanes)
        loaded, totals = _tile_loads(builder, sums, address, first), _vectors(builder, sums, value)
        added = [builder.fadd(total, builder.fmul(x, factor)) for total, x in zip(totals, loaded, strict=True)]
        return _packed(builder, added)

    return sums(sums, types.intp, types.intp, types.float64), codegen


def _add_pair(name: str, combine, doc: str):
    def typing(typingctx, sums, tile, index, partner, weight):
        def codegen(context, builder, sig, args):
            value, address, first, second, scalar = args
            factor = broadcast_lane(builder, scalar, sums.lanes)
            a, b = (_tile_loads(builder, sums, address, at) for at in (first, second))
            totals = _vectors(builder, sums, value)
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
    """`lanes` elements of the array of dtype `kind` at `address`, from `index` on, as float64."""
    name, result = kind.literal_value, Sums(1, lanes.literal_value)

    def codegen(context, builder, sig, args):
        element = _element(name)
        source, first, *_ = args
        start = _at(builder, source, first, element)
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
    """Store one vector of float64 to the array of dtype `kind` at `address`, from `index` on, cast as C does on x86.

    A value is truncated to a 32-bit integer (64-bit for uint32, int64 and uint64); a smaller type takes its low bits. A
    value out of range, or a NaN, becomes the smallest integer. A bool is true if the low byte is not zero.
    """
    name = kind.literal_value

    def codegen(context, builder, sig, args):
        target, first, sums, *_ = args
        (vector,) = _vectors(builder, value, sums)
        cast = _cast(builder, vector, name)
        start = _at(builder, target, first, cast.type.element)
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
        negative = builder.neg(_unsigned(builder, builder.fneg(vector)))
        positive = builder.fcmp_ordered(">", vector, filled(vector.type, -1.0))
        return builder.select(positive, _unsigned(builder, vector), negative)
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
    """Truncate; a value out of range becomes the smallest integer, as with CVTTSD2SI."""
    integers, least = vector_of(vector.type.count, ir.IntType(bits)), -(2 ** (bits - 1))
    below = max(least - 1.0, math.nextafter(least, -math.inf), key=abs)  # the largest float64 that is too small
    fits = builder.fcmp_ordered(">", vector, filled(vector.type, below))
    fits = builder.and_(fits, builder.fcmp_ordered("<", vector, filled(vector.type, -float(least))))
    return builder.select(fits, builder.fptosi(vector, integers), filled(integers, least))


def _unsigned(builder, vector):
    """Truncate to 64 bits, values up to 2**64; negative ones keep their low bits."""
    half = 2.0**63
    large = builder.fcmp_ordered(">=", vector, filled(vector.type, half))
    beyond = _truncated(builder, builder.fsub(vector, filled(vector.type, half)), 64)
    flipped = builder.xor(beyond, filled(beyond.type, -(2**63)))
    return builder.select(large, flipped, _truncated(builder, vector, 64))
