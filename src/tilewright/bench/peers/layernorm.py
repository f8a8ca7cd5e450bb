"""PyTorch for layernorm."""

import torch
from torch.nn.functional import layer_norm

from tilewright.bench.measure import Call
from tilewright.bench.peers._shared import in_class, tensor, truth_by


def truth(case, tensors: dict):
    """See `tilewright.bench.peers`."""
    return truth_by("layernorm", case, tensors)


def cpu(case, inputs: dict) -> dict[str, Call]:
    """PyTorch."""
    x, weight, bias = (tensor(inputs[name], "float32") for name in ("x", "weight", "bias"))
    return {"PyTorch": lambda: torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, inputs["eps"])}


def gpu(case, tensors: dict) -> dict[str, Call]:
    """PyTorch from float32. In a 16-bit class a second kernel rounds its result. Another call works wholly in 16 bits,
    and so reads two bytes per element less than tilewright."""
    x, weight, bias = (tensors[name] for name in ("x", "weight", "bias"))
    shape, eps = x.shape[-1:], case.eps
    if case.dtype == "float32":
        return {"PyTorch": lambda: layer_norm(x, shape, weight, bias, eps)}
    out = torch.empty_like(in_class(case, x))
    short, scale, shift = (in_class(case, tensor) for tensor in (x, weight, bias))
    return {
        "PyTorch, rounded after": lambda: out.copy_(layer_norm(x, shape, weight, bias, eps)),
        f"PyTorch, {case.dtype} in": lambda: layer_norm(short, shape, scale, shift, eps),
    }
