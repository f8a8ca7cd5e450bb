"""PyTorch beside the elementwise functions."""

from collections.abc import Callable

import torch

from tilewright.bench.gpu._rows import in_class, truth_by


def truth(case, tensors: dict):
    """See `tilewright.bench.gpu`."""
    return truth_by("elementwise", case, tensors)


def peers(case, tensors: dict) -> dict[str, Callable[[], object]]:
    """PyTorch, in and out in the class's dtype, as ours."""
    x = in_class(case, tensors["x"])
    out = torch.empty_like(x)
    if case.function.startswith("gelu"):
        form = "tanh" if case.function == "gelu_tanh" else "none"
        return {"PyTorch": lambda: torch.ops.aten.gelu.out(x, approximate=form, out=out)}
    if case.function == "relu":
        return {"PyTorch": lambda: torch.clamp_min(x, 0, out=out)}
    return {"PyTorch": lambda: torch.tanh(x, out=out)}
