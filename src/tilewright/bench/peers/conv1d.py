"""oneDNN and cuDNN for conv1d, and convolutions in float64."""

import torch
from torch.nn import functional

from tilewright.bench.measure import Call
from tilewright.bench.peers._shared import tensor
from tilewright.ops.matmul.problem import EPS32

CHECKED = 16  # samples that are compared


def truth(case, tensors: dict):
    """Convolutions in float64, on the GPU; see `tilewright.bench.peers`."""
    x, weight = tensors["x"][:CHECKED].double(), tensors["weight"].double()
    exact, size = (_convolved(case, *pair) for pair in ((x, weight), (x.abs(), weight.abs())))
    later = torch.zeros(case.O, 1, device=x.device, dtype=x.dtype)
    if case.bias:
        later = tensors["bias"].double()[:, None]
        exact = exact + later
    if case.activation:
        exact = exact.relu()
    later = size + later.abs()
    if case.pool:
        exact, size, later = (part.amax(2) for part in (exact, size, later))
    depth = (case.C * case.K) ** 0.5
    return exact, lambda c: EPS32 * (c * depth * size + later) + torch.finfo(torch.float32).tiny


def _convolved(case, x, weight):
    """The convolution alone, as matrix products: cuDNN's float64 would take seconds."""
    x = functional.pad(x, (case.padding, case.padding))
    last = case.stride * (case.positions - 1) + 1
    parts = (x[:, :, t * case.dilation : t * case.dilation + last : case.stride] for t in range(case.K))
    return sum(weight[:, :, t] @ part for t, part in enumerate(parts))


def cpu(case, inputs: dict) -> dict[str, Call]:
    """oneDNN, with ReLU and the maximum as separate kernels."""
    x, weight = (tensor(inputs[name], case.dtype) for name in ("x", "weight"))
    options = {name: inputs[name] for name in ("stride", "padding", "dilation") if name in inputs}
    bias = tensor(inputs["bias"], case.dtype) if "bias" in inputs else None

    def call():
        y = torch.nn.functional.conv1d(x, weight, bias, **options)
        y = y.relu_() if case.activation else y
        return y.amax(dim=2) if case.pool else y

    return {"oneDNN": call}


def gpu(case, tensors: dict) -> dict[str, Call]:
    """cuDNN through PyTorch, with the bias in its epilogue, and ReLU and the maximum as separate kernels."""
    kind = getattr(torch, case.dtype) if case.dtype.endswith("16") else torch.float32
    x, weight = tensors["x"].to(kind), tensors["weight"].to(kind)
    bias = tensors["bias"].to(kind) if case.bias else None

    def call():
        torch.backends.cudnn.allow_tf32 = case.dtype == "tf32"
        torch.backends.cudnn.benchmark = True
        y = functional.conv1d(x, weight, bias, case.stride, case.padding, case.dilation)
        y = y.relu_() if case.activation else y
        return y.amax(2) if case.pool else y

    return {"cuDNN": call}
