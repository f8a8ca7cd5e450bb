"""PyTorch for the elementwise functions."""

import torch

from tilewright.bench.measure import Call
from tilewright.bench.peers._shared import in_class, tensor, truth_by


def truth(case, tensors: dict):
    """See `tilewright.bench.peers`."""
    return truth_by("elementwise", case, tensors)


def cpu(case, inputs: dict) -> dict[str, Call]:
    """PyTorch. It writes to memory that is allocated, as tilewright does."""
    return _calls(case, tensor(inputs["x"], "float32"))


def gpu(case, tensors: dict) -> dict[str, Call]:
    """PyTorch, with inputs and outputs in the class's dtype, as in tilewright."""
    return _calls(case, in_class(case, tensors["x"]))


def _calls(case, x) -> dict[str, Call]:
    out = torch.empty_like(x)
    if case.function.startswith("gelu"):
        form = "tanh" if case.function == "gelu_tanh" else "none"
        return {"PyTorch": lambda: torch.ops.aten.gelu.out(x, approximate=form, out=out)}
    if case.function == "relu":
        return {"PyTorch": lambda: torch.clamp_min(x, 0, out=out)}
    return {"PyTorch": lambda: torch.tanh(x, out=out)}
