"""PyTorch for sample."""

import torch

from tilewright.bench.measure import Call
from tilewright.bench.sizes import sample as spec
from tilewright.ops.sample.operands import Rules

CHECKED = 64  # rows; the exact result sorts each of them


def truth(case, tensors: dict):
    """See `tilewright.bench.peers`."""
    count = min(CHECKED, case.M)
    inputs = {name: tensors[name].cpu().numpy() for name in ("logits", *Rules._fields)}
    inputs |= {name: inputs[name][:count] for name in ("logits", "floats", "integers", "ends")}  # they have rows
    exact = spec.reference(case, inputs)
    device = tensors["logits"].device
    return torch.from_numpy(exact).to(device), lambda c: torch.from_numpy(spec.bound(case, inputs, exact, c)).to(device)


def cpu(case, inputs: dict) -> dict[str, Call]:
    """Draws as transformers does."""
    logits = torch.from_numpy(inputs["logits"])
    return {"PyTorch": lambda: drawn(case, logits)}


def gpu(case, tensors: dict) -> dict[str, Call]:
    """Draws as transformers does."""
    return {"PyTorch": lambda: drawn(case, tensors["logits"])}


def drawn(case, logits):
    """Tokens (M, 1) drawn as in transformers, in float32: tokens that top_k and top_p exclude are masked, and one is
    drawn from the softmax of the rest."""
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
