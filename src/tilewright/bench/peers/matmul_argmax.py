"""Libraries for matmul_argmax, which write the product and search it; and products in float64."""

import numpy as np
import torch

from tilewright.bench.measure import Call
from tilewright.bench.peers._shared import tensor
from tilewright.ops.matmul_argmax.problem import EPS32, LIMBS

CHECKED = 512  # rows that are compared: their float64 logits take 206 MB
LINE = 64  # elements: cuBLAS multiplies at full rate if rows of its result are multiples of 128 bytes


def truth(case, tensors: dict):
    """Products in float64, on the GPU; see `tilewright.bench.peers`."""
    a, b = tensors["a"][:CHECKED].double(), tensors["b"].double()
    exact, size = (a @ b).amax(dim=1), (a.abs() @ b.abs()).amax(dim=1)
    return exact, lambda c: EPS32 * LIMBS * c * np.sqrt(case.K) * size


def cpu(case, inputs: dict) -> dict[str, Call]:
    """MKL or oneDNN, then a search through the product."""
    a, b = (tensor(inputs[name], case.dtype) for name in "ab")
    return {"MKL" if case.dtype == "float32" else "oneDNN": lambda: torch.mm(a, b).argmax(dim=1)}


def gpu(case, tensors: dict) -> dict[str, Call]:
    """cuBLAS and PyTorch's search for the largest element, and cuBLAS alone, with columns padded to whole lines."""
    kind = getattr(torch, case.dtype) if case.dtype.endswith("16") else torch.float32
    a, rows = tensors["a"].to(kind), tensors["b"].T.to(kind)
    padded = rows.new_zeros(-(-case.N // LINE) * LINE, case.K)
    padded[: case.N] = rows
    logits = torch.empty(len(a), len(padded), dtype=kind, device=a.device)

    def product():
        torch.backends.cuda.matmul.allow_tf32 = case.dtype == "tf32"
        return torch.mm(a, padded.T, out=logits)

    return {"cuBLAS and max": lambda: product()[:, : case.N].max(dim=1), "cuBLAS, no max": product}
