"""Libraries for logprob. They write the logits, then their log-softmax, and gather the targets."""

import torch

from tilewright.bench.measure import Call
from tilewright.bench.peers._shared import tensor


def cpu(case, inputs: dict) -> dict[str, Call]:
    """MKL or oneDNN, then PyTorch's log_softmax and gather."""
    a, b = (tensor(inputs[name], case.dtype) for name in "ab")
    targets = torch.from_numpy(inputs["targets"])[:, None]
    bias = 0 if inputs["bias"] is None else torch.from_numpy(inputs["bias"])

    def call():
        logits = torch.mm(a, b).float() + bias if case.bias else torch.mm(a, b).float()
        return torch.log_softmax(logits, dim=1).gather(1, targets)

    return {"PyTorch": call}
