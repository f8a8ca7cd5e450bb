"""oneDNN and cuDNN for conv_transpose2d, and sums in float64."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch.nn.functional import conv_transpose2d, gelu

from tilewright.bench.measure import Call
from tilewright.bench.peers._shared import tensor
from tilewright.ops.conv_transpose2d.problem import EPS32, STEEPEST

CHECKED = 32  # images that are compared
ACTIVATIONS: dict[str | None, Callable] = {
    None: lambda x: x,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
}


def truth(case, tensors: dict):
    """Sums in float64, on the GPU; see `tilewright.bench.peers`."""
    x, weights = tensors["x"][:CHECKED].double(), tensors["weights"].double()
    bias = tensors["bias"].double() if "bias" in tensors else x.new_zeros(case.O)
    own = _cropped(case, x.abs(), weights.abs())
    exact = ACTIVATIONS[case.activation](_cropped(case, x, weights) + bias)
    depth = case.C * math.prod(-(-K // s) for K, s in zip(case.K, case.stride, strict=True))
    later = EPS32 * (2 * bias.abs() + own + (4 if case.activation else 1) * exact.abs())
    slope = STEEPEST if case.activation else 1.0
    return exact, lambda c: slope * (EPS32 * c * math.sqrt(depth) * own + later)


def _cropped(case, x, weights):
    """float64 (B, OH, OW, O) of the full result."""
    (top, bottom), (left, right) = case.padding
    full = conv_transpose2d(x.permute(0, 3, 1, 2), weights.permute(3, 2, 0, 1), stride=case.stride)
    return full[:, :, top : full.shape[2] - bottom, left : full.shape[3] - right].permute(0, 2, 3, 1)


def cpu(case, inputs: dict) -> dict[str, Call]:
    """Both memory layouts. PyTorch crops both ends equally, so a view crops the remaining pixels."""
    crops = [min(pair) for pair in case.padding]
    bias = tensor(inputs["bias"], case.dtype) if "bias" in inputs else None
    call, ((top, bottom), (left, right)) = torch.nn.functional.conv_transpose2d, case.padding
    activation = getattr(torch, f"{case.activation}_") if case.activation in ("relu", "tanh") else (lambda y: y)

    def with_layout(layout):
        x = tensor(np.moveaxis(inputs["x"], 3, 1), case.dtype).contiguous(memory_format=layout)
        weights = tensor(np.transpose(inputs["weights"], (3, 2, 0, 1)), case.dtype).contiguous(memory_format=layout)

        def run():
            y = call(x, weights, bias, stride=case.stride, padding=crops)
            y = y[:, :, top - crops[0] : y.shape[2] - (bottom - crops[0]), left - crops[1] :]
            return activation(y[:, :, :, : y.shape[3] - (right - crops[1])])

        return run

    return {"PyTorch": with_layout(torch.contiguous_format), "PyTorch, channels last": with_layout(torch.channels_last)}


def gpu(case, tensors: dict) -> dict[str, Call]:
    """cuDNN with both memory layouts, the bias in its epilogue, and the activation as a separate kernel."""
    if any(not 0 <= first - last <= 1 and not 0 <= last - first <= 1 for first, last in case.padding):
        return {}
    layouts = {"cuDNN, channels last": torch.channels_last, "cuDNN": torch.contiguous_format}
    return {name: vendor(case, tensors, layout) for name, layout in layouts.items()}


def vendor(case, tensors: dict, layout) -> Call:
    """cuDNN on a case's tensors.

    PyTorch can crop as much at the end as at the start, or one pixel less. To crop one more, the image and the kernel
    are mirrored before.
    """
    kind = getattr(torch, case.dtype) if case.dtype.endswith("16") else torch.float32
    axes = [axis for axis, (first, last) in enumerate(case.padding) if last > first]
    x, weights = tensors["x"].flip([1 + a for a in axes]), tensors["weights"].flip(axes)
    x = x.permute(0, 3, 1, 2).to(kind).contiguous(memory_format=layout)
    weights = weights.permute(3, 2, 0, 1).to(kind).contiguous(memory_format=layout)
    bias = tensors["bias"].to(kind) if "bias" in tensors else None
    activate, padding = ACTIVATIONS[case.activation], [max(crop) for crop in case.padding]
    options = {"stride": case.stride, "padding": padding, "output_padding": [max(c) - min(c) for c in case.padding]}

    def call():
        torch.backends.cudnn.allow_tf32 = case.dtype == "tf32"
        torch.backends.cudnn.benchmark = True  # cuDNN times its algorithms at the first call
        return activate(conv_transpose2d(x, weights, bias, **options))

    return call
