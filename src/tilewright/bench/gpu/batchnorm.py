"""PyTorch and cuDNN beside batchnorm."""

from collections.abc import Callable

from torch.nn.functional import batch_norm, gelu

from tilewright.bench.gpu._rows import in_class, truth_by

ACTIVATIONS: dict = {
    None: lambda x: x,
    "relu": lambda x: x.relu_(),
    "tanh": lambda x: x.tanh_(),
    "gelu": lambda x: gelu(x),
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
}


def truth(case, tensors: dict):
    """See `tilewright.bench.gpu`."""
    return truth_by("batchnorm", case, tensors)


def peers(case, tensors: dict) -> dict[str, Callable[[], object]]:
    """PyTorch's channels-last, channels behind pixels as ours; the activation is a kernel of its own."""
    activate = ACTIVATIONS[case.activation]
    gamma, beta, mean, variance = (tensors[name] for name in ("gamma", "beta", "mean", "variance"))
    x = in_class(case, tensors["x"])
    pixels = x.movedim(-1, 1) if x.ndim > 1 else x[None]

    def call():
        return activate(batch_norm(pixels, mean, variance, gamma, beta, eps=case.eps))

    return {"PyTorch": call}
