"""Interprets conv3d's arguments, for all devices: the window, and weights as the chosen rung wants them."""

import operator
from dataclasses import replace

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.conv3d.ladder import FACTORS, ladder
from tilewright.ops.conv3d.operands import Packed, Window
from tilewright.ops.conv3d.problem import MODES, Problem
from tilewright.ops.conv3d.rank_one import factors_of, product_of
from tilewright.ops.core.arrays import BFLOAT16, as_float32, as_numpy, one_of

ALIASES = {"grid-mirror": "reflect", "grid-constant": "constant", "grid-wrap": "wrap"}  # as in scipy.ndimage


def pack(weights, device: str = "cpu", to=None) -> Packed:
    """Weights (KD, KH, KW) or (O, C, KD, KH, KW) for the rung that is chosen on `device`; to: a torch device.

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
    problem = Problem(O, C, KD, KH, KW, separable=factors is not None, symmetric=symmetric, device=device)
    return _packed(problem, whole, factors, channels, to)


def pack_factors(factors, device: str = "cpu", to=None) -> Packed:
    """The same for a kernel given as three vectors."""
    arrays = [as_numpy("factors", factor) for factor in factors]
    kinds = (np.float32, np.float64, BFLOAT16)
    if len(arrays) != 3 or any(a.ndim != 1 or not a.size or a.dtype not in kinds for a in arrays):
        what = ", ".join(f"{a.dtype} {a.shape}" for a in arrays)
        raise UsageError(f"conv3d: factors are {what}; three vectors of float32, float64 or bfloat16 are wanted")
    wz, wy, wx = (np.array(array, np.float32) for array in arrays)
    symmetric = len(wz) > 1 and np.array_equal(wz, wz[::-1])
    problem = Problem(1, 1, len(wz), len(wy), len(wx), separable=True, symmetric=symmetric, device=device)
    whole = None
    if ladder.choose(problem).name not in FACTORS:
        whole = product_of((wz, wy, wx)).astype(np.float32)[None, None]
    return _packed(problem, whole, (wz, wy, wx), False, to)


def _packed(problem: Problem, weights: np.ndarray | None, factors, channels: bool, to) -> Packed:
    """For the rung that is chosen now."""
    rung = ladder.choose(problem)
    plain = Packed(rung.name, problem, channels, weights, factors)
    if not rung.lay_out:
        return plain
    return replace(plain, data=rung.lay_out(plain) if problem.device == "cpu" else rung.lay_out(plain, to))


def check_rung(packed: Packed, device: str):
    """The rung that runs now on `device`. Raises UsageError unless the weights were prepared for it."""
    if packed.problem.device != device:
        raise UsageError(
            f"conv3d: weights were prepared for rung {packed.rung} and x is on {device}: prepare them for that device"
        )
    rung = ladder.choose(packed.problem)
    if rung.name != packed.rung:
        raise UsageError(
            f"conv3d: weights were prepared for rung {packed.rung}, and {rung.name} is chosen now: prepare them again"
        )
    return rung


def volume_shape(shape: tuple[int, ...], packed: Packed) -> tuple[int, ...]:
    """(D, H, W) of x with this shape. Raises UsageError if the weights are not for it."""
    C = packed.problem.C
    *channels, _, _, _ = shape if len(shape) >= 3 else (0, 0, 0)
    if len(shape) < 3 or channels != [C] * packed.channels:
        wanted = f"(C, D, H, W) with C = {C} channels" if packed.channels else "(D, H, W)"
        raise UsageError(f"conv3d: x is {tuple(shape)} and weights are {packed.shape}; x must be {wanted}")
    return tuple(shape[packed.channels :])


def window_for(volume: tuple[int, ...], sizes: tuple[int, int, int], mode: str, cval, origin) -> Window:
    """The window of a kernel of these sizes on a volume (D, H, W).

    Raises UsageError for a mode, an origin, a size or a cval that does not fit.
    """
    one_of("conv3d", "mode", mode, (*MODES, *ALIASES, "valid"))
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
    z, y, x = (0 if mode == "valid" else K // 2 + at for K, at in zip(sizes, origins, strict=True))
    return Window((z, y, x), ALIASES.get(mode, mode), number)


def _origins(origin, sizes: tuple[int, ...]) -> tuple[int, ...]:
    if type(origin) is int and origin == 0:
        return 0, 0, 0
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
