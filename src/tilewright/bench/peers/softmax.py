"""PyTorch for softmax."""

import torch

from tilewright.bench.measure import Call
from tilewright.bench.peers._shared import in_class, tensor, truth_by


def truth(case, tensors: dict):
    """See `tilewright.bench.peers`."""
    return truth_by("softmax", case, tensors)


def cpu(case, inputs: dict) -> dict[str, Call]:
    """PyTorch."""
    x = tensor(inputs["x"], "float32")
    out = torch.empty_like(x)
    return {"PyTorch": lambda: torch.softmax(x, dim=-1, out=out)}


def gpu(case, tensors: dict) -> dict[str, Call]:
    """PyTorch, with inputs and outputs in the class's dtype, as in tilewright."""
    x = in_class(case, tensors["x"])
    out = torch.empty_like(x)
    return {"PyTorch": lambda: torch.softmax(x, -1, out=out)}
