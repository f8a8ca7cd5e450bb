"""Filters of volumes that are torch tensors on a GPU: `ops.conv3d`, by the argument rules of scipy.ndimage."""

import numpy as np

from tilewright.ndimage._arguments import array_of, axes_of, check_origin, mode_of, per_axis, real_of, turned


def filter_tensor(input, weights, output, mode, cval, origin, axes):
    """Correlation of a float32 tensor (D, H, W) with weights (KD, KH, KW), on its device; output: a tensor, or None.

    Raises RuntimeError for other shapes, dtypes and outputs, and what `conv3d` raises.
    """
    from tilewright.ops.conv3d import conv3d, prepare

    weights = _numbers(weights)
    if input.ndim != 3 or str(input.dtype) != "torch.float32" or axes_of(axes, input.ndim) != (0, 1, 2):
        what = f"input is {input.dtype} {tuple(input.shape)}"
        raise RuntimeError(f"{what}: on a GPU, only float32 volumes (D, H, W) are filtered, along all axes")
    if weights.ndim != 3 or not weights.size:
        raise RuntimeError(f"weights has shape {weights.shape}; three dimensions are wanted, none empty")
    if output is not None and not hasattr(output, "data_ptr"):
        raise RuntimeError(f"output is {output!r}; a tensor on the GPU, or None, is wanted")
    origins = per_axis(origin, 3)
    for at, K in zip(origins, weights.shape, strict=True):
        check_origin(at, K)
    kernel = prepare(weights, device=input.device)
    return conv3d(input, kernel, mode=mode_of(mode), cval=real_of(cval), origin=origins, out=output)


def turned_tensor(weights, origin) -> tuple[np.ndarray, list]:
    """Weights and origins of the correlation that equals the convolution with these."""
    weights = _numbers(weights)
    origins = [turned(at, K) for at, K in zip(per_axis(origin, weights.ndim), weights.shape, strict=True)]
    return np.flip(weights), origins


def _numbers(weights) -> np.ndarray:
    """float32, on the CPU."""
    if hasattr(weights, "data_ptr"):
        return weights.detach().cpu().float().numpy()
    return np.asarray(array_of("weights", weights), np.float32)
