"""PyTorch and cuDNN for batchnorm."""

import torch
from torch.nn.functional import batch_norm, gelu

from tilewright.bench.measure import Call
from tilewright.bench.peers._shared import in_class, tensor, truth_by

ACTIVATIONS: dict = {
    None: lambda x: x,
    "relu": lambda x: x.relu_(),
    "tanh": lambda x: x.tanh_(),
    "gelu": lambda x: gelu(x),
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
}


def truth(case, tensors: dict):
    """See `tilewright.bench.peers`."""
    return truth_by("batchnorm", case, tensors)


def cpu(case, inputs: dict) -> dict[str, Call]:
    """PyTorch, channels last in memory."""
    names = ("x", "mean", "variance", "gamma", "beta")
    x, mean, variance, gamma, beta = (tensor(inputs[name], "float32") for name in names)
    x, call = x.movedim(-1, 1), torch.nn.functional.batch_norm  # channels last in memory
    activation = getattr(torch, f"{case.activation}_") if case.activation in ("relu", "tanh") else (lambda y: y)
    return {"PyTorch": lambda: activation(call(x, mean, variance, gamma, beta, eps=inputs["eps"]))}


def gpu(case, tensors: dict) -> dict[str, Call]:
    """PyTorch's channels-last layout, as in tilewright; the activation is a separate kernel."""
    activate = ACTIVATIONS[case.activation]
    gamma, beta, mean, variance = (tensors[name] for name in ("gamma", "beta", "mean", "variance"))
    x = in_class(case, tensors["x"])
    pixels = x.movedim(-1, 1) if x.ndim > 1 else x[None]

    def call():
        return activate(batch_norm(pixels, mean, variance, gamma, beta, eps=case.eps))

    return {"PyTorch": call}
