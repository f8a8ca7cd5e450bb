"""PyTorch beside sample."""

from collections.abc import Callable

import torch

from tilewright.bench.peers import drawn
from tilewright.bench.sizes import sample as spec
from tilewright.ops.sample.operands import Rules

LOOKED_AT = 64  # rows: the truth sorts each


def truth(case, tensors: dict):
    """See `tilewright.bench.gpu`."""
    count = min(LOOKED_AT, case.M)
    inputs = {name: tensors[name].cpu().numpy() for name in ("logits", *Rules._fields)}
    inputs |= {name: inputs[name][:count] for name in ("logits", "floats", "integers", "ends")}  # the parts with rows
    exact = spec.reference(case, inputs)
    place = tensors["logits"].device
    return torch.from_numpy(exact).to(place), lambda c: torch.from_numpy(spec.bound(case, inputs, exact, c)).to(place)


def peers(case, tensors: dict) -> dict[str, Callable[[], object]]:
    """As transformers draws."""
    return {"PyTorch": lambda: drawn(torch, case, tensors["logits"])}
