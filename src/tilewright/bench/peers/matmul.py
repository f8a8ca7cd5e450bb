"""MKL, oneDNN, OpenVINO and cuBLAS for matmul, and products in float64."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import numpy as np
import torch

from tilewright.bench.measure import Call
from tilewright.bench.peers._shared import packs, tensor
from tilewright.bench.peers.openvino import compiled
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
    """Libraries for a product alone. MKL (float32) and oneDNN (bfloat16) read b as it is. "oneDNN, packed" and
    OpenVINO, if they can, convert b to their own layout beforehand, as tilewright's packed rungs do."""
    if case.batch or case.bias or case.residual or case.activation or case.gathered:
        return {}
    a, b = (tensor(inputs[name], case.dtype) for name in "ab")
    out = torch.empty(case.M, case.N, dtype=a.dtype)
    found = {"MKL" if case.dtype == "float32" else "oneDNN": lambda: torch.mm(a, b, out=out)}
    if packs(case.dtype):
        found["oneDNN, packed"] = _packed(a, b)
    if case.dtype == "float32" and find_spec("openvino"):
        found["OpenVINO"] = _openvino(a.numpy(), b.numpy())
    return found


def _packed(a, b) -> Call:
    """The call that `torch.compile` makes for a linear layer with constant weights."""
    with torch.inference_mode():
        weights = torch.ops.mkldnn._reorder_linear_weight(b.T.contiguous(), len(a))

    def call():
        with torch.inference_mode():
            return torch.ops.mkldnn._linear_pointwise(a, weights, None, "none", [], "")

    return call


def _openvino(a: np.ndarray, b: np.ndarray) -> Call:
    """OpenVINO's product with a constant b, on `thread_count()` threads."""
    from openvino import Model, Tensor
    from openvino import opset13 as graph

    rows = graph.parameter(a.shape, np.float32)
    run = compiled(Model([graph.matmul(rows, graph.constant(b), False, False)], [rows]), "float32")
    request = run.create_infer_request()
    request.set_input_tensor(Tensor(a, shared_memory=True))

    def call():
        request.infer()
        return request.get_output_tensor().data

    return call


def gpu(case, tensors: dict) -> dict[str, Call]:
    """cuBLAS with b as it is, and with b transposed."""
    if case.batch or case.gathered or case.activation not in (None, "relu", "gelu_tanh"):
        return {}
    return {"cuBLAS": vendor(case, tensors), "cuBLAS, b transposed": vendor(case, tensors, transposed=True)}


def vendor(case, tensors: dict, *, transposed: bool = False) -> Call:
    """cuBLAS on a case's tensors, with the bias in its epilogue, and the residual and the activation as separate
    kernels.

    transposed: b is stored as (N, K).
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
