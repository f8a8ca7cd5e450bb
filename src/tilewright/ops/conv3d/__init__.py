"""3-D convolution of volumes: a cross-correlation with scipy.ndimage's borders.

from tilewright.ops.conv3d import conv3d, prepare, prepare_separable
y = conv3d(x, weights, mode="reflect")                          # (D, H, W), (KD, KH, KW) -> (D, H, W)
packed = prepare(weights)                                       # once; then conv3d(x, packed) for every volume
y = conv3d(x, prepare_separable((wz, wy, wx)))                  # three vectors whose outer product is the kernel
y = conv3d(x, weights)                                          # (C, D, H, W), (O, C, KD, KH, KW) -> (O, D, H, W)
"""

import operator
from dataclasses import replace

import numpy as np

from tilewright.errors import ResourceError, UsageError
from tilewright.ops._arrays import as_float32, as_numpy, like, one_of, put_back, result_for, target_for
from tilewright.ops._memory import empty
from tilewright.ops.conv3d.ladder import ladder
from tilewright.ops.conv3d.operands import Border, Packed, index_map
from tilewright.ops.conv3d.rank_one import factors_of, product_of
from tilewright.ops.conv3d.spec import MODES, Problem

__all__ = ["Packed", "Problem", "conv3d", "ladder", "prepare", "prepare_separable"]

ALIASES = {"grid-mirror": "reflect", "grid-constant": "constant", "grid-wrap": "wrap"}  # as in scipy.ndimage


def prepare(weights) -> Packed:
    """Look at weights once, and lay them out for the rung that will convolve with them.

    weights: (KD, KH, KW), or (O, C, KD, KH, KW) for volumes with channels; float32 or bfloat16, any strides. The result
    holds copies. A single kernel that is an outer product of three vectors, each tap to `rank_one.TOLERANCE` of its
    size, becomes three passes.
    Raises UsageError for a wrong dtype or rank, Refused if a rung forced by `using` does not take it.
    """
    weights = as_float32("weights", weights)
    if weights.ndim not in (3, 5) or not weights.size:
        raise UsageError(
            f"conv3d: weights has shape {weights.shape}; (KD, KH, KW) or (O, C, KD, KH, KW) is wanted, at least one of "
            "each"
        )
    channels = weights.ndim == 5
    whole = np.array(weights if channels else weights[None, None])  # a copy: the caller may change his
    factors = None if channels else factors_of(weights)
    O, C, KD, KH, KW = whole.shape
    symmetric = KD > 1 and np.array_equal(whole, whole[:, :, ::-1])
    problem = Problem(O, C, KD, KH, KW, separable=factors is not None, symmetric=symmetric)
    return _packed(problem, whole, factors, channels)


def prepare_separable(factors) -> Packed:
    """The same for a kernel given as (wz, wy, wx): weights[a, b, t] = wz[a] * wy[b] * wx[t].

    Each: one-dimensional, at least one number; float32 or float64, rounded to float32.
    Raises UsageError for anything else, Refused if a rung forced by `using` does not take it.
    """
    arrays = [as_numpy("factors", factor) for factor in factors]
    wrong = [a for a in arrays if a.ndim != 1 or not a.size or a.dtype not in (np.float32, np.float64)]
    if len(arrays) != 3 or wrong:
        what = ", ".join(f"{a.dtype} {a.shape}" for a in arrays)
        raise UsageError(f"conv3d: factors are {what}; three vectors of float32 or float64 are wanted")
    wz, wy, wx = (np.array(array, np.float32) for array in arrays)
    symmetric = len(wz) > 1 and np.array_equal(wz, wz[::-1])
    problem = Problem(1, 1, len(wz), len(wy), len(wx), separable=True, symmetric=symmetric)
    rung = ladder.choose(problem)
    if rung.name == "cpu.separable":
        return Packed(rung.name, problem, False, None, (wz, wy, wx))
    return _packed(problem, product_of((wz, wy, wx)).astype(np.float32)[None, None], (wz, wy, wx), False)


def _packed(problem: Problem, weights: np.ndarray, factors, channels: bool) -> Packed:
    """For the rung that is chosen now."""
    rung = ladder.choose(problem)
    plain = Packed(rung.name, problem, channels, weights, factors)
    return replace(plain, data=rung.prepare(plain)) if rung.prepare else plain


def conv3d(x, weights, *, mode="constant", cval=0.0, origin=0, out=None):
    """Cross-correlation (the kernel is not flipped) with float32 sums: scipy.ndimage.correlate.

    out[z, y, x] = sum over a, b, t of weights[a, b, t] * x[z + a - pz, y + b - py, x + t - px]

    with p = K // 2 + origin on each axis, and a sum over channels c of x[c] and weights[o, c] where there are some.
    x: (D, H, W), or (C, D, H, W); float32 or bfloat16, any strides, NumPy or anything that speaks DLPack. weights:
    (KD, KH, KW), or (O, C, KD, KH, KW), or what `prepare` or `prepare_separable` gave. mode: what lies around the
    volume, "reflect" "constant" "nearest" "mirror" "wrap" (or scipy's grid-mirror, grid-constant, grid-wrap), or
    "valid" for outputs whose whole window is in x. cval: the number around it in mode "constant". origin: an integer,
    or one an axis, from -(K // 2) to (K - 1) // 2; 0 in mode "valid". out: float32 array to write to.
    Returns float32 (D, H, W) or (O, D, H, W), in mode "valid" (D - KD + 1, H - KH + 1, W - KW + 1); x's kind of array.
    An output's bits depend on the numbers under its window and on weights alone: not on the rest of the volume, its
    size, or the number of threads, so a volume may be convolved in tiles. The rung `cpu.fft` alone breaks that.
    Raises UsageError naming the argument that does not fit, ResourceError where memory does not hold the result.
    """
    array = as_float32("x", x)
    packed = weights if isinstance(weights, Packed) else prepare(weights)
    one_of("conv3d", "mode", mode, (*MODES, *ALIASES, "valid"))
    C, sizes = packed.problem.C, packed.sizes
    if array.ndim != 3 + packed.channels or (packed.channels and len(array) != C):
        wanted = f"(C, D, H, W) with C = {C} channels" if packed.channels else "(D, H, W)"
        raise UsageError(f"conv3d: x is {array.shape} and weights are {packed.shape}; x must be {wanted}")
    volume = array if packed.channels else array[None]
    border = _border(volume.shape[1:], sizes, ALIASES.get(mode, mode), cval, origin)
    inner = tuple(len(m) - K + 1 for m, K in zip((border.z, border.y, border.x), sizes, strict=True))
    result = result_for("conv3d", out, (packed.problem.O, *inner) if packed.channels else inner)
    target = result if out is None else target_for(result, array)
    try:
        _run(volume, packed, target if packed.channels else target[None], border)
    except MemoryError as error:
        raise ResourceError(f"conv3d: memory does not hold x {array.shape} with its border: {error}") from error
    put_back(result, target)
    return like(x, result)


def _run(x: np.ndarray, packed: Packed, out: np.ndarray, border: Border) -> None:
    """The chosen rung, on out (O, D, H, W), rows contiguous."""
    rung = ladder.choose(packed.problem)
    if rung.name != packed.rung:
        raise UsageError(
            f"conv3d: weights were prepared for rung {packed.rung}, and {rung.name} is chosen now: prepare them again"
        )
    if out.size == 0:
        return
    target = out if out.strides[3] == 4 else empty(out.shape)
    rung.run(x if x.strides[3] == 4 else np.ascontiguousarray(x), packed, target, border)
    put_back(out, target)


def _border(volume: tuple[int, ...], sizes: tuple[int, ...], mode: str, cval, origin) -> Border:
    """Index maps for the three axes. Raises UsageError for an origin, a size or a cval that does not fit."""
    origins = _origins(origin, sizes)
    if mode == "valid":
        if any(origins):
            raise UsageError(
                f"conv3d: origin is {origin}; mode 'valid' has outputs for whole windows only, 0 is wanted"
            )
        if any(n < K for n, K in zip(volume, sizes, strict=True)):
            raise UsageError(f"conv3d: x is {volume} and the kernel is {tuple(sizes)}; mode 'valid' needs it inside x")
    try:
        with np.errstate(over="ignore"):
            number = np.float32(cval)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"conv3d: cval is {cval!r}; a number is wanted") from error
    first = [-(K // 2 + at) for K, at in zip(sizes, origins, strict=True)]
    z, y, x = (index_map(n, K, mode, at) for n, K, at in zip(volume, sizes, first, strict=True))
    return Border(z, y, x, left=0 if mode == "valid" else -first[2], cval=number)


def _origins(origin, sizes: tuple[int, ...]) -> tuple[int, ...]:
    try:
        found = tuple(map(operator.index, origin)) if np.ndim(origin) else (operator.index(origin),) * 3
    except TypeError as error:
        raise UsageError(f"conv3d: origin is {origin!r}; an integer, or one for each axis, is wanted") from error
    if len(found) != 3:
        raise UsageError(f"conv3d: origin is {origin!r}; an integer, or one for each of three axes, is wanted")
    for at, K in zip(found, sizes, strict=True):
        if not -(K // 2) <= at <= (K - 1) // 2:
            raise UsageError(
                f"conv3d: origin is {origin!r} and the kernel is {tuple(sizes)}; with {K} taps it goes from "
                f"{-(K // 2)} to {(K - 1) // 2}"
            )
    return found
