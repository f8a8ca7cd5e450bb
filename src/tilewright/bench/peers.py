"""The libraries that others would use for the same work, called the way they are meant to be called.

PyTorch brings MKL (float32 products) and oneDNN (bfloat16 products, convolutions); NumPy brings OpenBLAS.
"""

from collections.abc import Callable

import numpy as np

from tilewright.ops._threads import thread_count


def peers(op: str, case, inputs: dict) -> dict[str, Callable[[], object]]:
    """Name -> call of everything installed that computes this case; empty where nothing does."""
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(thread_count())
    return PEERS.get(op, lambda *_: {})(torch, case, inputs)


def _tensor(torch, array, dtype: str):
    kind = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    return torch.from_numpy(np.array(array, np.float32)).to(kind)


def _matmul(torch, case, inputs: dict) -> dict:
    if case.batch or case.bias or case.residual or case.activation or case.gathered:
        return {}
    a, b = (_tensor(torch, inputs[name], case.dtype) for name in "ab")
    out = torch.empty(case.M, case.N, dtype=a.dtype)
    name = "MKL" if case.dtype == "float32" else "oneDNN"
    return {name: lambda: torch.mm(a, b, out=out)}


def _embedding(torch, case, inputs: dict) -> dict:
    ids, table = torch.from_numpy(inputs["ids"]), _tensor(torch, inputs["table"], "float32")
    return {"PyTorch": lambda: torch.nn.functional.embedding(ids, table)}


def _conv1d(torch, case, inputs: dict) -> dict:
    x, weight = (_tensor(torch, inputs[name], case.dtype) for name in ("x", "weight"))
    options = {name: inputs[name] for name in ("stride", "padding", "dilation") if name in inputs}
    bias = _tensor(torch, inputs["bias"], case.dtype) if "bias" in inputs else None

    def call():
        y = torch.nn.functional.conv1d(x, weight, bias, **options)
        y = y.relu() if case.activation else y
        return y.amax(dim=2) if case.pool else y

    return {"oneDNN": call}


def _embedding_conv1d(torch, case, inputs: dict) -> dict:
    ids, table = torch.from_numpy(inputs["ids"]), _tensor(torch, inputs["table"], case.dtype)
    weights = [_tensor(torch, w, case.dtype) for w in inputs["weights"]]
    biases = [_tensor(torch, b, case.dtype) for b in inputs["biases"]]

    def call():
        x = torch.nn.functional.embedding(ids, table).transpose(1, 2)
        branches = [torch.nn.functional.conv1d(x, w, b) for w, b in zip(weights, biases, strict=True)]
        return torch.cat([torch.relu(y).amax(dim=2) for y in branches], dim=1)

    return {"PyTorch": call}


PEERS = {"matmul": _matmul, "embedding": _embedding, "conv1d": _conv1d, "embedding_conv1d": _embedding_conv1d}
