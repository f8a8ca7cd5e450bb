"""PyTorch, scipy, Halide, OpenCV and CuPy for conv3d, and sums over windows in float64."""

import math
from importlib.util import find_spec

import numpy as np

from tilewright.bench.measure import Call
from tilewright.bench.peers.halide import halide_call
from tilewright.bench.peers.opencv import opencv_call
from tilewright.ops.conv3d.arguments import window_for
from tilewright.ops.conv3d.operands import index_map
from tilewright.ops.conv3d.problem import EPS32
from tilewright.ops.core.launch import thread_count
from tilewright.ops.core.memory import zeros

CHECKED = 16  # planes that are compared; all of them if there are channels


def truth(case, tensors: dict):
    """The first planes in float64, on the GPU; see `tilewright.bench.peers`."""
    x, weights = tensors["x"], tensors["weights"]
    if isinstance(weights, tuple):
        exact, size = _passes(x, weights, case)
    else:
        weights = np.asarray(weights.cpu(), np.float64)
        exact, size = _sums(x, weights, case) if case.C else (y[0] for y in _sums(x[None], weights[None, None], case))
    return exact, lambda c: c * EPS32 * math.sqrt(case.taps) * size + np.finfo(np.float32).tiny


def _surrounded(x, case):
    """The part of x (C, D, H, W) that the checked planes need, in float64, with the border around it."""
    import torch

    sizes, planes = (case.KD, case.KH, case.KW), case.D if case.C else CHECKED
    window = window_for(tuple(x.shape[1:]), sizes, case.mode, case.cval, case.origin)
    axes = zip(x.shape[1:], sizes, window.first, strict=True)
    maps = [torch.tensor(index_map(n, K, window.mode, -first), device=x.device) for n, K, first in axes]
    maps[0] = maps[0][: planes + case.KD - 1]
    around = (maps[0] < 0)[:, None, None] | (maps[1] < 0)[:, None] | (maps[2] < 0)
    wide = x[:, maps[0]][:, :, maps[1]][:, :, :, maps[2]].double()
    return wide.masked_fill(around, float(window.cval))


def _passes(x, factors: tuple, case):
    """(sums, sums of absolute values), one axis at a time."""
    exact = _surrounded(x[None], case)[0]
    size = exact.abs()
    for axis, factor in enumerate(factors):
        count = exact.shape[axis] - len(factor) + 1
        pairs = [(float(w), t) for t, w in enumerate(factor)]
        exact = sum(w * exact.narrow(axis, t, count) for w, t in pairs)
        size = sum(abs(w) * size.narrow(axis, t, count) for w, t in pairs)
    return exact, size


def _sums(x, weights: np.ndarray, case):
    """(sums, sums of absolute values), tap by tap."""
    import torch

    wide = _surrounded(x, case)
    D, H, W = (n - K + 1 for n, K in zip(wide.shape[1:], weights.shape[2:], strict=True))
    exact = torch.zeros(len(weights), D, H, W, dtype=torch.float64, device=x.device)
    size = torch.zeros_like(exact)
    for o, c, a, b, t in np.ndindex(weights.shape):
        part = wide[c, a : a + D, b : b + H, t : t + W]
        exact[o] += part * weights[o, c, a, b, t]
        size[o] += part.abs() * abs(weights[o, c, a, b, t])
    return exact, size


def cpu(case, inputs: dict) -> dict[str, Call]:
    """PyTorch, and scipy.ndimage, Halide and OpenCV if they are installed, if they can compute this case."""
    others = (("scipy", "scipy", scipy_call), ("Halide", "halide", halide_call), ("OpenCV", "cv2", opencv_call))
    found = {"PyTorch": torch_call(case, inputs)}
    found |= {name: call(case, inputs) for name, module, call in others if find_spec(module)}
    return {name: call for name, call in found.items() if call}


def gpu(case, tensors: dict) -> dict[str, Call]:
    """cuDNN, and CuPy if it is installed, if they can compute this case."""
    found = {"cuDNN": torch_call(case, tensors), "CuPy": _cupy(case, tensors) if find_spec("cupyx") else None}
    return {name: call for name, call in found.items() if call}


def torch_call(case, inputs: dict) -> Call | None:
    """PyTorch's conv3d in float32, three calls if the kernel is given as factors. None for a border that PyTorch lacks.

    inputs: arrays or tensors. Raises ModuleNotFoundError if PyTorch is missing.
    """
    import torch

    torch.set_num_threads(thread_count())
    odd = all(K % 2 for K in (case.KD, case.KH, case.KW))
    if case.mode not in ("constant", "valid") or case.cval or case.origin or not odd:
        return None

    def moved(array):
        array = np.ascontiguousarray(array) if isinstance(array, np.ndarray) else array
        return torch.as_tensor(array, device=x.device)

    x, weights = torch.as_tensor(inputs["x"]), inputs["weights"]
    shapes = ((-1, 1, 1), (1, -1, 1), (1, 1, -1))
    whole = [w.reshape(s) for w, s in zip(weights, shapes, strict=True)] if isinstance(weights, tuple) else [weights]
    kernels = [moved(w if case.C else w[None, None]) for w in whole]
    x = (x if case.C else x[None])[None]

    def call():
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = False, True  # cuDNN times its algorithms
        y = x
        for kernel in kernels:
            around = [K // 2 if case.mode == "constant" else 0 for K in kernel.shape[2:]]
            y = torch.nn.functional.conv3d(y, kernel, padding=around)
        return y

    return call


def scipy_call(case, inputs: dict) -> Call | None:
    """scipy.ndimage: `correlate`, or `correlate1d` along each axis as `gaussian_filter` does. None if there are
    channels.

    Raises ModuleNotFoundError if scipy is missing.
    """
    from scipy import ndimage

    x, weights, out = inputs["x"], inputs["weights"], zeros(inputs["x"].shape)
    border = {"mode": case.mode, "cval": case.cval}
    if case.C or case.mode == "valid" or case.origin:
        return None
    if not isinstance(weights, tuple):
        return lambda: ndimage.correlate(x, weights, output=out, **border)

    def passes():
        for axis, factor in enumerate(weights):
            ndimage.correlate1d(out if axis else x, factor, axis, output=out, **border)
        return out

    return passes


def _cupy(case, tensors: dict) -> Call | None:
    """CuPy's ndimage: `correlate`, or `correlate1d` along each axis as its `gaussian_filter` does."""
    if case.C or case.mode == "valid" or case.origin:
        return None
    import cupy
    from cupyx.scipy import ndimage

    x, weights, border = cupy.from_dlpack(tensors["x"]), tensors["weights"], {"mode": case.mode, "cval": case.cval}
    out = cupy.empty_like(x)
    if not isinstance(weights, tuple):
        taps = cupy.from_dlpack(weights)
        return _on_torchs_stream(lambda: ndimage.correlate(x, taps, output=out, **border))
    factors, between = [cupy.asarray(factor) for factor in weights], cupy.empty_like(x)

    def passes():
        ndimage.correlate1d(x, factors[0], 0, output=out, **border)
        ndimage.correlate1d(out, factors[1], 1, output=between, **border)
        ndimage.correlate1d(between, factors[2], 2, output=out, **border)
        return out

    return _on_torchs_stream(passes)


class _TorchStream:
    """PyTorch's current stream by the CUDA stream protocol."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """(version of the protocol, address)."""
        import torch

        return 0, torch.cuda.current_stream().cuda_stream


def _on_torchs_stream(call: Call) -> Call:
    """Run a call on PyTorch's stream, because CuPy has a current stream of its own."""
    import cupy

    def run():
        with cupy.cuda.Stream.from_external(_TorchStream()):
            return call()

    return run
