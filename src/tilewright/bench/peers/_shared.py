"""What the operations on rows share beside their peers: the truth, from the NumPy reference on as many rows as that
takes in a second."""

import importlib

import numpy as np
import torch

from tilewright.ops.core.gpu.tensors import torch_dtype

CHECKED = 1 << 20  # numbers that are compared, at least a row


def truth_by(op: str, case, tensors: dict, *, along: tuple[str, ...] = ("x",), width: int = 1):
    """(exact, allowed) of `tilewright.bench.peers`, by the operation's `reference` and `bound`.

    along: the arguments that have the result's rows, of which the first are taken; width: numbers of the result for
    each of theirs.
    """
    spec = importlib.import_module(f"tilewright.bench.sizes.{op}")
    inputs = {
        name: x.cpu().numpy() if isinstance(x, torch.Tensor) else x for name, x in _first(tensors, along, width).items()
    }
    reference = spec.reference(case, inputs)
    device = next(x.device for x in tensors.values() if isinstance(x, torch.Tensor))

    def allowed(c: float):
        bound = spec.bound(case, inputs, reference, c)
        return torch.from_numpy(np.array(np.broadcast_to(bound, reference.shape))).to(device)

    return torch.from_numpy(np.array(reference)).to(device), allowed


def _first(tensors: dict, along: tuple[str, ...], width: int) -> dict:
    x = tensors[along[0]]
    count = max(1, CHECKED * len(x) // max(x.numel() * width, 1))
    return {name: value[:count] if name in along else value for name, value in tensors.items()}


def in_class(case, x):
    """A tensor as the class keeps activations: in 16 bits, if it has 16."""
    return x.to(torch_dtype(case.dtype))


def tensor(array, dtype: str) -> torch.Tensor:
    """A CPU tensor of an array's values in the class's dtype."""
    kind = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    return torch.from_numpy(np.array(array, np.float32)).to(kind)
