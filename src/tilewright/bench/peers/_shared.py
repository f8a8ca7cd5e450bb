"""Shared by the operations on rows: the exact result, from the NumPy reference, of as many rows as it computes in a
second."""

import importlib

import numpy as np
import torch

from tilewright.ops.core.gpu.tensors import torch_dtype

CHECKED = 1 << 20  # elements that are compared, but at least one row


def truth_by(op: str, case, tensors: dict, *, along: tuple[str, ...] = ("x",), width: int = 1):
    """(exact, allowed) as in `tilewright.bench.peers`, from the operation's `reference` and `bound`.

    along: the arguments whose rows match the rows of the result; their first rows are used. width: elements of the
    result for each element of these arguments.
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


def packs(dtype: str) -> bool:
    """Whether oneDNN packs weights of this dtype on this CPU: bfloat16 needs AVX-512 or AVX-NE-CONVERT."""
    return dtype != "bfloat16" or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def in_class(case, x):
    """A tensor in the dtype in which the accuracy class keeps activations: 16 bits in a 16-bit class."""
    return x.to(torch_dtype(case.dtype))


def tensor(array, dtype: str) -> torch.Tensor:
    """A CPU tensor of an array's values in the class's dtype."""
    kind = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    return torch.from_numpy(np.array(array, np.float32)).to(kind)
