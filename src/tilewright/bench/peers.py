"""The libraries that others would use for the same work, called the way they are meant to be called.

PyTorch brings MKL (float32 products) and oneDNN (bfloat16 products, convolutions); NumPy brings OpenBLAS.
"""

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

from tilewright.ops.core.launch import thread_count


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


def _conv_transpose2d(torch, case, inputs: dict) -> dict:
    """In both layouts of memory; PyTorch crops both ends alike, so what more there is to crop becomes a view."""
    crops = [min(pair) for pair in case.padding]
    bias = _tensor(torch, inputs["bias"], case.dtype) if "bias" in inputs else None
    call, ((top, bottom), (left, right)) = torch.nn.functional.conv_transpose2d, case.padding
    activation = getattr(torch, case.activation) if case.activation in ("relu", "tanh") else (lambda y: y)

    def with_layout(layout):
        x = _tensor(torch, np.moveaxis(inputs["x"], 3, 1), case.dtype).contiguous(memory_format=layout)
        weights = np.transpose(inputs["weights"], (3, 2, 0, 1))
        weights = _tensor(torch, weights, case.dtype).contiguous(memory_format=layout)

        def run():
            y = call(x, weights, bias, stride=case.stride, padding=crops)
            y = y[:, :, top - crops[0] : y.shape[2] - (bottom - crops[0]), left - crops[1] :]
            return activation(y[:, :, :, : y.shape[3] - (right - crops[1])])

        return run

    return {"PyTorch": with_layout(torch.contiguous_format), "PyTorch, channels last": with_layout(torch.channels_last)}


def _batchnorm(torch, case, inputs: dict) -> dict:
    names = ("x", "mean", "variance", "gamma", "beta")
    x, mean, variance, gamma, beta = (_tensor(torch, inputs[name], "float32") for name in names)
    x, call = x.movedim(-1, 1), torch.nn.functional.batch_norm  # channels last in memory
    activation = getattr(torch, case.activation) if case.activation in ("relu", "tanh") else (lambda y: y)
    return {"PyTorch": lambda: activation(call(x, mean, variance, gamma, beta, eps=inputs["eps"]))}


def _conv3d(torch, case, inputs: dict) -> dict:
    from tilewright.bench.conv3d import scipy_call, torch_call

    calls = {"PyTorch": torch_call(case, inputs)}
    if find_spec("scipy"):
        calls["scipy"] = scipy_call(case, inputs)
    return {name: call for name, call in calls.items() if call}


def _embedding_conv1d(torch, case, inputs: dict) -> dict:
    ids, table = torch.from_numpy(inputs["ids"]), _tensor(torch, inputs["table"], case.dtype)
    weights = [_tensor(torch, w, case.dtype) for w in inputs["weights"]]
    biases = [_tensor(torch, b, case.dtype) for b in inputs["biases"]]

    def call():
        x = torch.nn.functional.embedding(ids, table).transpose(1, 2)
        branches = [torch.nn.functional.conv1d(x, w, b) for w, b in zip(weights, biases, strict=True)]
        return torch.cat([torch.relu(y).amax(dim=2) for y in branches], dim=1)

    return {"PyTorch": call}


def _layernorm(torch, case, inputs: dict) -> dict:
    x, weight, bias = (_tensor(torch, inputs[name], "float32") for name in ("x", "weight", "bias"))
    return {"PyTorch": lambda: torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, inputs["eps"])}


def _softmax(torch, case, inputs: dict) -> dict:
    x = _tensor(torch, inputs["x"], "float32")
    out = torch.empty_like(x)
    return {"PyTorch": lambda: torch.softmax(x, dim=-1, out=out)}


def _elementwise(torch, case, inputs: dict) -> dict:
    x, gelu = _tensor(torch, inputs["x"], "float32"), torch.nn.functional.gelu
    calls = {"relu": torch.relu, "tanh": torch.tanh, "gelu": gelu, "gelu_tanh": lambda x: gelu(x, approximate="tanh")}
    return {"PyTorch": lambda: calls[case.function](x)}


def _attention(torch, case, inputs: dict) -> dict:
    if case.causal and 1 < case.Q < case.T:
        return {}  # PyTorch aligns its causal mask with the first key
    q, k, v = (_tensor(torch, inputs[name], "float32") for name in "qkv")
    call = torch.nn.functional.scaled_dot_product_attention
    return {"PyTorch": lambda: call(q, k, v, is_causal=case.causal and case.Q > 1)}


def _matmul_argmax(torch, case, inputs: dict) -> dict:
    a, b = (_tensor(torch, inputs[name], case.dtype) for name in "ab")
    return {"MKL" if case.dtype == "float32" else "oneDNN": lambda: torch.mm(a, b).argmax(dim=1)}


def _sample(torch, case, inputs: dict) -> dict:
    logits = torch.from_numpy(inputs["logits"])
    return {"PyTorch": lambda: drawn(torch, case, logits)}


def drawn(torch, case, logits):
    """Tokens (M, 1) as transformers draws them, in float32: what top_k and top_p leave out is masked, and a token drawn
    from the softmax of the rest."""
    scores, (top_k, top_p, min_p) = logits / case.temperature, case.limits
    if top_k:
        scores = scores.masked_fill(scores < scores.topk(top_k)[0][:, -1:], -torch.inf)
    if top_p < 1:
        ordered, ids = scores.sort(descending=False)
        out = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
        out[:, -1] = False
        scores = scores.masked_fill(out.scatter(1, ids, out), -torch.inf)
    shares = scores.softmax(-1)
    if min_p:
        shares = shares.masked_fill(shares < min_p * shares.amax(-1, keepdim=True), 0.0)
    return torch.multinomial(shares, 1)


PEERS = {
    "attention": _attention, "batchnorm": _batchnorm, "conv1d": _conv1d, "conv3d": _conv3d,
    "conv_transpose2d": _conv_transpose2d, "elementwise": _elementwise, "embedding": _embedding,
    "embedding_conv1d": _embedding_conv1d, "layernorm": _layernorm, "matmul": _matmul,
    "matmul_argmax": _matmul_argmax, "sample": _sample, "softmax": _softmax,
}  # fmt: skip
