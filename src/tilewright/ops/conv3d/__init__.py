"""3-D convolution of volumes: a cross-correlation with scipy.ndimage's borders.

from tilewright.ops.conv3d import conv3d, prepare, prepare_separable
y = conv3d(x, weights, mode="reflect")                          # (D, H, W), (KD, KH, KW) -> (D, H, W)
packed = prepare(weights)                                       # once; then conv3d(x, packed) for every volume
y = conv3d(x, prepare_separable((wz, wy, wx)))                  # three vectors whose outer product is the kernel
y = conv3d(x, weights)                                          # (C, D, H, W), (O, C, KD, KH, KW) -> (O, D, H, W)
"""

import functools

import numpy as np

from tilewright.errors import ResourceError
from tilewright.ops.conv3d.arguments import ALIASES, check_rung, pack, pack_factors, volume_shape, window_for
from tilewright.ops.conv3d.ladder import ladder
from tilewright.ops.conv3d.operands import Border, Packed, index_map
from tilewright.ops.conv3d.problem import Problem
from tilewright.ops.core.arrays import as_float32, like, put_back, result_for, target_for
from tilewright.ops.core.gpu.tensors import on_gpu
from tilewright.ops.core.memory import empty

__all__ = ["ALIASES", "Packed", "Problem", "conv3d", "ladder", "prepare", "prepare_separable"]


def prepare(weights, *, device=None) -> Packed:
    """Look at weights once, and lay them out for the rung that will convolve with them.

    weights: (KD, KH, KW), or (O, C, KD, KH, KW) for volumes with channels; float32 or bfloat16, any strides.
    device: for volumes there, "cuda" or a torch device; None: where the weights are. The result holds copies. A single
    kernel that is an outer product of three vectors, each tap to `rank_one.TOLERANCE` of its size, becomes three
    passes. Raises UsageError for a wrong dtype or rank, Refused if a rung forced by `using` does not take it.
    """
    if on_gpu(weights) or device not in (None, "cpu"):
        from tilewright.ops.conv3d import device as gpu

        return gpu.prepare(weights, device=device)
    return pack(weights)


def prepare_separable(factors, *, device=None) -> Packed:
    """The same for a kernel given as (wz, wy, wx): weights[a, b, t] = wz[a] * wy[b] * wx[t].

    Each: one-dimensional, at least one number; float32, bfloat16 or float64, rounded to float32. device: None is the
    CPU. Raises UsageError for anything else, Refused if a rung forced by `using` does not take it.
    """
    if device not in (None, "cpu"):
        from tilewright.ops.conv3d import device as gpu

        return gpu.prepare_separable(factors, device=device)
    return pack_factors(factors)


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
    size, or the number of threads, so a volume may be convolved in tiles.
    Raises UsageError naming the argument that does not fit, ResourceError where memory does not hold the result.
    """
    if on_gpu(x):
        from tilewright.ops.conv3d import device

        return device.conv3d(x, weights, mode=mode, cval=cval, origin=origin, out=out)
    array = as_float32("x", x)
    packed = weights if isinstance(weights, Packed) else prepare(weights)
    sizes = packed.sizes
    shape = volume_shape(array.shape, packed)
    volume = array if packed.channels else array[None]
    border = _border(shape, sizes, mode, cval, origin)
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
    rung = check_rung(packed, "cpu")
    if out.size == 0:
        return
    target = out if out.strides[3] == 4 else empty(out.shape)
    rung.run(x if x.strides[3] == 4 else np.ascontiguousarray(x), packed, target, border)
    put_back(out, target)


def _border(volume: tuple[int, ...], sizes: tuple[int, int, int], mode, cval, origin) -> Border:
    """Index maps for the three axes, the same object for the same arguments."""
    window = window_for(volume, sizes, mode, cval, origin)
    return _kept_border(volume, sizes, window.first, window.mode, window.cval.tobytes())  # 0.0 == -0.0


@functools.lru_cache(maxsize=96)
def _kept_border(volume, sizes, first: tuple[int, int, int], mode: str, cval: bytes) -> Border:
    z, y, x = (index_map(n, K, mode, -at) for n, K, at in zip(volume, sizes, first, strict=True))
    return Border(z, y, x, left=first[2], cval=np.frombuffer(cval, np.float32)[0])
