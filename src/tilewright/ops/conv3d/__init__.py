"""3-D convolution of volumes: a cross-correlation with scipy.ndimage's borders.

from tilewright.ops.conv3d import conv3d, prepare, prepare_separable
y = conv3d(x, weights, mode="reflect")                          # (D, H, W), (KD, KH, KW) -> (D, H, W)
packed = prepare(weights)                                       # once; then conv3d(x, packed) for every volume
y = conv3d(x, prepare_separable((wz, wy, wx)))                  # three vectors whose outer product is the kernel
y = conv3d(x, weights)                                          # (C, D, H, W), (O, C, KD, KH, KW) -> (O, D, H, W)
"""

import functools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.errors import ResourceError
from tilewright.ops.conv3d.arguments import ALIASES, check_rung, pack, pack_factors, volume_shape, window_for
from tilewright.ops.conv3d.ladder import ladder
from tilewright.ops.conv3d.operands import Border, Packed, Window, index_map
from tilewright.ops.conv3d.problem import Problem
from tilewright.ops.core.arguments import DEVICE, HOST, arguments_of
from tilewright.ops.core.arrays import T, Tensor, put_back
from tilewright.ops.core.gpu.tensors import names_gpu, on_gpu
from tilewright.ops.core.memory import empty

__all__ = ["ALIASES", "Packed", "Problem", "conv3d", "ladder", "prepare", "prepare_separable"]

ALIGNMENT = 16  # bytes, of an output on a GPU: kernels store so many at a time


def prepare(weights, *, device=None) -> Packed:
    """Pack weights for the rung that will convolve with them.

    weights: (KD, KH, KW), or (O, C, KD, KH, KW) for volumes with channels; float32 or bfloat16, any strides.
    device: of the volumes, "cpu", "cuda" or a torch device; None: the weights' own. The result holds copies. Weights on
    a GPU are copied to the CPU first, which waits for the GPU. A single kernel that is an outer product of three
    vectors, each tap to `rank_one.TOLERANCE` of its size, becomes three passes.
    Raises UsageError for a wrong dtype or rank, Refused if a rung forced by `using` does not support it.
    """
    if not on_gpu(weights):
        return pack(weights, "cuda", device) if names_gpu(device) else pack(weights)
    tensor = DEVICE.take("conv3d", "weights", weights)
    return pack(tensor.detach().cpu().float().numpy(), "cuda", device or tensor.device)


def prepare_separable(factors, *, device=None) -> Packed:
    """Pack a kernel given as (wz, wy, wx): weights[a, b, t] = wz[a] * wy[b] * wx[t].

    factors: one-dimensional and not empty; float32, bfloat16 or float64, rounded to float32. device: None is the CPU.
    Raises UsageError for anything else, Refused if a rung forced by `using` does not support it.
    """
    return pack_factors(factors, "cuda", device) if names_gpu(device) else pack_factors(factors)


def conv3d(
    x: T,
    weights: Tensor | Packed,
    *,
    mode: str = "constant",
    cval: float = 0.0,
    origin: int | Sequence[int] = 0,
    out: T | None = None,
) -> T:
    """Cross-correlation (the kernel is not flipped) with float32 sums: scipy.ndimage.correlate.

    out[z, y, x] = sum over a, b, t of weights[a, b, t] * x[z + a - pz, y + b - py, x + t - px]

    with p = K // 2 + origin on each axis, and a sum over channels c of x[c] and weights[o, c] where there are some.
    x: (D, H, W), or (C, D, H, W); float32 or bfloat16, on a GPU also float16; any strides; NumPy, torch or DLPack.
    weights: (KD, KH, KW), or (O, C, KD, KH, KW), or the result of `prepare` or `prepare_separable` for x's device.
    mode: the border's rule, "reflect" "constant" "nearest" "mirror" "wrap" (or scipy's grid-mirror, grid-constant,
    grid-wrap), or "valid" for outputs whose whole window is in x. cval: the border's value in mode "constant". origin:
    an integer, or one per axis, from -(K // 2) to (K - 1) // 2; 0 in mode "valid". out: float32 array to write to.
    Returns float32 (D, H, W) or (O, D, H, W), in mode "valid" (D - KD + 1, H - KH + 1, W - KW + 1); x's kind of array.
    An output's bits depend on the elements under its window and on weights alone: not on the rest of the volume, its
    size, or the number of threads, so a volume may be convolved in tiles.
    Raises UsageError naming the argument that does not fit, ResourceError if memory is too small for the result.
    """
    repeated: Any = weights.memo.repeated(x, out, mode, cval, origin) if isinstance(weights, Packed) else None
    if repeated is not None:
        return repeated
    arguments = arguments_of(x)
    array: Any = arguments.take("conv3d", "x", x)
    if isinstance(weights, Packed):
        packed = weights
    else:
        packed = prepare(weights, device=None if arguments is HOST else array.device)
    volume = volume_shape(array.shape, packed)
    window = window_for(volume, packed.sizes, mode, cval, origin)
    if window.mode == "valid":
        volume = tuple(n - K + 1 for n, K in zip(volume, packed.sizes, strict=True))
    shape = (packed.problem.O, *volume) if packed.channels else volume
    result: Any = arguments.result("conv3d", out, shape, array)
    rung = check_rung(packed, arguments.device)
    whole = slice(None) if packed.channels else None
    if arguments is HOST:
        target: Any = result if out is None else arguments.target(result, array)
        compute = partial(_run_on_host, rung, array[whole], packed, target[whole], window)
        if array is x and target is result:
            packed.memo.run(compute, x, result, mode, cval, origin)
        else:
            compute()
        return arguments.finish(x, result, target)
    data = packed.data if isinstance(packed.data, list) else [packed.data]
    for tensor in (one for one in data if hasattr(one, "device")):
        arguments.same_device("conv3d", "x", array, weights=tensor)
    if 0 in shape:
        return arguments.finish(x, result, result)
    target = arguments.target(result, array)
    target = result.new_empty(shape) if target.data_ptr() % ALIGNMENT else target
    rung.run(array.float().contiguous()[whole], packed, target[whole], window)
    return arguments.finish(x, result, target)


def _run_on_host(rung, x: np.ndarray, packed: Packed, out: np.ndarray, window: Window) -> None:
    """Run the rung on out (O, D, H, W), with the rows of x and out contiguous."""
    try:
        border = _border(x.shape[1:], packed.sizes, window.first, window.mode, window.cval.tobytes())  # 0.0 == -0.0
        if math.prod(out.shape):
            target = out if out.strides[3] == out.itemsize else empty(out.shape)
            rung.run(x if x.strides[3] == x.itemsize else np.ascontiguousarray(x), packed, target, border)
            put_back(out, target)
    except MemoryError as error:
        raise ResourceError(f"conv3d: not enough memory for the padded input {x.shape[1:]}: {error}") from error


@functools.lru_cache(maxsize=96)
def _border(volume, sizes, first: tuple[int, int, int], mode: str, cval: bytes) -> Border:
    """Index maps of the three axes; equal arguments give the same object."""
    z, y, x = (index_map(n, K, mode, -at) for n, K, at in zip(volume, sizes, first, strict=True))
    _, _, left = first
    return Border(z, y, x, left=left, cval=np.frombuffer(cval, np.float32)[0])
