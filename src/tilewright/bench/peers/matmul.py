"""MKL, oneDNN and cuBLAS beside matmul, and products in float64."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from tilewright.bench.measure import Call
from tilewright.bench.peers._shared import tensor
from tilewright.ops.matmul.problem import EPS32, STEEPEST

CHECKED = 2048  # rows that are compared


def truth(case, tensors: dict):
    """Products in float64, on the GPU; see `tilewright.bench.peers`."""
    a, b = tensors["a"][:CHECKED].double(), tensors["b"].double()
    exact, size, later = a @ b, a.abs() @ b.abs(), 0.0
    addends = [tensors["residual"][:CHECKED]] if "residual" in tensors else []
    addends += [tensors["bias"]] if "bias" in tensors else []
    for addend in addends:
        exact = exact + addend.double()
        later = later + addend.double().abs()
    if case.activation:
        exact = _gelu(exact) if case.activation == "gelu_tanh" else exact.relu()
    later = later + (4 if case.activation else 1) * exact.abs()
    slope = STEEPEST if case.activation else 1.0
    return exact, lambda c: EPS32 * slope * (c * np.sqrt(case.K) * size + 2 * later)


def cpu(case, inputs: dict) -> dict[str, Call]:
    """MKL or oneDNN for a bare product."""
    if case.batch or case.bias or case.residual or case.activation or case.gathered:
        return {}
    a, b = (tensor(inputs[name], case.dtype) for name in "ab")
    out = torch.empty(case.M, case.N, dtype=a.dtype)
    name = "MKL" if case.dtype == "float32" else "oneDNN"
    return {name: lambda: torch.mm(a, b, out=out)}


def gpu(case, tensors: dict) -> dict[str, Call]:
    """cuBLAS with b as it comes and transposed."""
    if case.batch or case.gathered or case.activation not in (None, "relu", "gelu_tanh"):
        return {}
    return {"cuBLAS": vendor(case, tensors), "cuBLAS, b transposed": vendor(case, tensors, transposed=True)}


def vendor(case, tensors: dict, *, transposed: bool = False) -> Call:
    """cuBLAS on a case's tensors, bias in its own epilogue, residual and activation as kernels of their own.

    transposed: b lies as (N, K).
    """
    kind = getattr(torch, case.dtype) if case.dtype.endswith("16") else torch.float32
    a, b = tensors["a"].to(kind), tensors["b"].to(kind)
    bias, residual = (tensors[x].to(kind) if x in tensors else None for x in ("bias", "residual"))
    b = b.T.contiguous().T if transposed else b
    out = torch.empty(len(a), b.shape[1], dtype=kind, device=a.device)
    functions: dict[str | None, Callable] = {None: lambda x: x, "relu": torch.relu_, "gelu_tanh": _gelu}
    activate = functions[case.activation]

    def call():
        torch.backends.cuda.matmul.allow_tf32 = case.dtype == "tf32"
        product = torch.mm(a, b, out=out) if bias is None else torch.addmm(bias, a, b, out=out)
        return activate(product if residual is None else product.add_(residual))

    return call


_gelu = partial(torch.nn.functional.gelu, approximate="tanh")
