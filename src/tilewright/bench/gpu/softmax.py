"""PyTorch beside softmax."""

from collections.abc import Callable

import torch

from tilewright.bench.gpu._rows import in_class, truth_by


def truth(case, tensors: dict):
    """See `tilewright.bench.gpu`."""
    return truth_by("softmax", case, tensors)


def peers(case, tensors: dict) -> dict[str, Callable[[], object]]:
    """PyTorch, in and out in the class's dtype, as ours."""
    x = in_class(case, tensors["x"])
    out = torch.empty_like(x)
    return {"PyTorch": lambda: torch.softmax(x, -1, out=out)}
