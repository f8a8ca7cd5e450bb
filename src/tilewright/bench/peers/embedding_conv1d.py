"""PyTorch for embedding_conv1d, and features in float64."""

import torch
from torch.nn.functional import conv1d, embedding

from tilewright.bench.measure import Call
from tilewright.bench.peers._shared import tensor
from tilewright.ops.embedding_conv1d.problem import ROUNDINGS
from tilewright.ops.matmul.problem import EPS32

CHECKED = 256  # sentences that are compared
BATCH = 1024  # sentences that the peer convolves together; it is fastest with these


def truth(case, tensors: dict):
    """Features in float64, on the GPU; see `tilewright.bench.peers`."""
    ids, table = tensors["ids"][:CHECKED].long(), tensors["table"]
    x = table[ids].double()  # (B, L, C)
    exact, terms, roundings, biases = [], [], [], []
    for weight, bias in zip(*_filters(tensors), strict=True):
        K = weight.shape[2]
        positions = x.shape[1] - K + 1
        rows = [x[:, t : t + positions] @ weight[:, :, t].double().T for t in range(K)]
        sizes = [x[:, t : t + positions].abs() @ weight[:, :, t].double().abs().T for t in range(K)]
        exact.append((sum(rows) + bias.double()).relu().amax(1))
        terms.append(sum(sizes).amax(1) * (case.C * K) ** 0.5)
        biases.append((K + 1) * (sum(sizes).amax(1) / case.C**0.5 + bias.double().abs()))
        roundings.append(sum(row.abs() for row in rows).amax(1))
    whole, size, later, rounded = (torch.cat(parts, 1) for parts in (exact, terms, biases, roundings))
    return whole, lambda c: EPS32 * (c * size + later) + ROUNDINGS[case.dtype] * rounded


def _filters(tensors: dict):
    """Weights and biases on the GPU, because `moved` moves arrays but not lists of arrays."""
    there = tensors["table"].device
    return [[torch.as_tensor(array, device=there) for array in tensors[name]] for name in ("weights", "biases")]


def cpu(case, inputs: dict) -> dict[str, Call]:
    """PyTorch: the embedding, oneDNN's convolutions, ReLU, the maximum."""
    ids, table = torch.from_numpy(inputs["ids"]), tensor(inputs["table"], case.dtype)
    weights = [tensor(w, case.dtype) for w in inputs["weights"]]
    biases = [tensor(b, case.dtype) for b in inputs["biases"]]

    def call():
        x = torch.nn.functional.embedding(ids, table).transpose(1, 2)
        branches = [torch.nn.functional.conv1d(x, w, b) for w, b in zip(weights, biases, strict=True)]
        return torch.cat([y.relu_().amax(dim=2) for y in branches], dim=1)

    return {"PyTorch": call}


def gpu(case, tensors: dict) -> dict[str, Call]:
    """PyTorch: the embedding, cuDNN's convolutions, ReLU, the maximum; in the case's dtype."""
    kind = getattr(torch, case.dtype)
    weights, biases = ([x.to(kind) for x in part] for part in _filters(tensors))
    table, ids = tensors["table"].to(kind), tensors["ids"].long()

    def call():
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        parts = []
        for some in ids.split(BATCH):
            x = embedding(some, table).transpose(1, 2)
            parts.append(torch.cat([conv1d(x, *f).relu_().amax(2) for f in zip(weights, biases, strict=True)], 1))
        return torch.cat(parts)

    return {"PyTorch": call}
