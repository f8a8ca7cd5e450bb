"""What PyTorch and transformers make of a model's weights in float64, and how far a result in another accuracy class
may be from that: for each layer the bound that its operations have, carried on through the layers after it."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tilewright.ops.conv_transpose2d.operands import Axis
from tilewright.ops.conv_transpose2d.tiles import term_sizes
from tilewright.ops.matmul.problem import EPS32

C = 10.0  # the largest constant of a rung of matmul, conv1d and conv_transpose2d
ROUNDED = 2.0**-8  # bfloat16's unit roundoff: both operands of a product are rounded


@contextmanager
def alone() -> Iterator[None]:
    """PyTorch on one thread: on a loaded machine two wait 10 ms for each other in each small operation."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _terms(dtype: str, count: int) -> float:
    """The largest error of a sum of `count` products, a part of the sum of their magnitudes."""
    return C * EPS32 * count**0.5 + (2 * ROUNDED if dtype == "bfloat16" else 0.0)


def _linear(x, error, weight, bias, dtype: str):
    """(x @ weight.T + bias, how far it may be off); weight (O, I)."""
    sums, size = x @ weight.T + bias, x.abs() @ weight.abs().T
    carried = error @ weight.abs().T
    return sums, carried + _terms(dtype, weight.shape[1]) * (size + carried) + EPS32 * (size + carried + bias.abs())


def textcnn_logits(config: dict, weights: dict, ids: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """float64 (n, labels) twice: logits, and how far they may be off."""
    import torch
    from torch.nn import functional

    w = {name: torch.from_numpy(array).double() for name, array in weights.items()}
    embedded = functional.embedding(torch.from_numpy(ids).long(), w["embedding.weight"]).transpose(1, 2)
    features, errors = [], []
    for i, K in enumerate(config["kernel_sizes"]):
        kernel, bias = w[f"convs.{i}.weight"], w[f"convs.{i}.bias"]
        sums = functional.conv1d(embedded, kernel, bias)
        size = functional.conv1d(embedded.abs(), kernel.abs())
        off = _terms(dtype, K * kernel.shape[1]) * size + EPS32 * (size + bias.abs()[:, None])
        features.append(sums.relu().amax(2))
        errors.append(off.amax(2))
    x, error = torch.cat(features, 1), torch.cat(errors, 1)
    layers = len(config["hidden_sizes"]) + 1
    for i in range(layers):
        x, error = _linear(x, error, w[f"linears.{i}.weight"], w[f"linears.{i}.bias"], dtype)
        x = x.relu() if i < layers - 1 else x
    return x.numpy(), error.numpy()


def dcgan_images(config: dict, weights: dict, z: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """float64 (n, height, width, channels) twice: images, and how far they may be off."""
    import torch
    from torch.nn import functional

    w = {name: torch.from_numpy(array).double() for name, array in weights.items()}
    none, size, eps = torch.zeros(1, dtype=torch.float64), config["size"], config["batch_norm_eps"]
    x = torch.from_numpy(z).double()
    x, error = _linear(x, torch.zeros_like(x), w["proj.weight"].T, w.get("proj.bias", none), dtype)
    x, error = (y.view(len(z), size, size, config["channels"]).permute(0, 3, 1, 2) for y in (x, error))
    for i, layer in enumerate(config["layers"]):
        beta, gamma, mean, variance = (
            w[f"norms.{i}.{name}"][:, None, None] for name in ("bias", "weight", "running_mean", "running_var")
        )
        scale = gamma / (variance + eps).sqrt()
        x = (x - mean) * scale + beta
        error = scale.abs() * error + 4 * EPS32 * (x.abs() + beta.abs() + (mean * scale).abs())
        x = x.relu()
        kernel = w[f"convs.{i}.weight"].permute(3, 2, 0, 1)  # (inputs, outputs, K, K)
        bias = w.get(f"convs.{i}.bias", none)[:, None, None]

        def spread(y, kernel=kernel, stride=layer["stride"], crops=layer["padding"]):
            y = functional.conv_transpose2d(y, kernel, stride=stride)
            return y[:, :, crops[0] : y.shape[2] - crops[1], crops[0] : y.shape[3] - crops[1]]

        shared = _shared(layer, x, kernel, dtype)
        magnitude, carried = spread(x, kernel.abs()), spread(error, kernel.abs())
        x = spread(x) + bias
        terms = _terms(dtype, kernel.shape[0] * layer["kernel"] ** 2)
        error = carried + terms * (magnitude + carried) + EPS32 * (magnitude + carried + bias.abs()) + shared
    x, error = x.tanh(), error + 4 * EPS32
    return x.permute(0, 2, 3, 1).numpy(), error.permute(0, 2, 3, 1).numpy()


def _shared(layer: dict, x, kernel, dtype: str):
    """How far a layer may be off where the outputs of a tile share their products: see conv_transpose2d's `bound`."""
    import torch

    axis = Axis(layer["kernel"], layer["stride"], *layer["padding"])
    if not 2 <= axis.window[1] <= 3:
        return 0.0
    sizes = term_sizes(x.permute(0, 2, 3, 1).numpy(), kernel.permute(2, 3, 1, 0).numpy(), axis, axis)
    each = EPS32 * (kernel.shape[0] ** 0.5 + 4) + (2 * ROUNDED + ROUNDED**2 if dtype == "bfloat16" else 0.0)
    return each * torch.from_numpy(np.asarray(sizes, np.float64)).permute(0, 3, 1, 2)


def gpt2_logits(config: dict, weights: dict):
    """ids -> float64 (n, vocab_size): transformers' logits after each of n tokens."""
    import torch
    import transformers

    fields = {"attn_implementation": "eager", "bos_token_id": None}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**config, **fields})).double().eval()
    tensors = {name: torch.from_numpy(array).double() for name, array in weights.items()}
    missing, unexpected = model.transformer.load_state_dict(tensors, strict=False)
    assert not unexpected and not [name for name in missing if not name.endswith((".bias", ".masked_bias"))]

    def logits(ids):
        with torch.no_grad():
            return model(torch.tensor([list(ids)])).logits[0].numpy()

    return logits
