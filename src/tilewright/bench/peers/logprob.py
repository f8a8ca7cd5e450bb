"""Libraries for logprob. They write the logits, then their log-softmax, and gather the targets."""

import math

import torch

from tilewright.bench.measure import Call
from tilewright.bench.peers._shared import tensor
from tilewright.ops.core.gpu.tensors import torch_dtype
from tilewright.ops.logprob.problem import EPS32, EXPS, LIMBS

CHECKED = 64  # rows


def cpu(case, inputs: dict) -> dict[str, Call]:
    """MKL or oneDNN, then PyTorch's log_softmax and gather."""
    a, b = (tensor(inputs[name], case.dtype) for name in "ab")
    targets = torch.from_numpy(inputs["targets"])[:, None]
    return {"PyTorch": _call(a, b, None if inputs["bias"] is None else torch.from_numpy(inputs["bias"]), targets)}


def gpu(case, tensors: dict) -> dict[str, Call]:
    """cuBLAS, then PyTorch's log_softmax and gather."""
    kind = torch_dtype(case.dtype)
    a, b = (tensors[name].to(kind) for name in "ab")
    return {"PyTorch": _call(a, b, tensors["bias"], tensors["targets"][:, None])}


def _call(a, b, bias, targets) -> Call:
    """A call that returns float32 (M,). It makes no needless pass over the logits: nothing is added without a bias, and
    log_softmax itself converts logits of 16 bits if it can."""

    def call():
        torch.backends.cuda.matmul.allow_tf32 = False
        logits = torch.mm(a, b)
        logits = logits if bias is None else logits.float().add_(bias)
        return torch.log_softmax(logits, dim=1, dtype=torch.float32).gather(1, targets)[:, 0]

    return call


def truth(case, tensors: dict):
    """The first rows in float64, and the bound of `problem.bound`."""
    a, b, targets = tensors["a"][:CHECKED].double(), tensors["b"].double(), tensors["targets"][:CHECKED, None]
    bias = torch.zeros((), device=a.device) if tensors["bias"] is None else tensors["bias"].double()
    exact = torch.log_softmax(a @ b + bias, dim=1).gather(1, targets)[:, 0]
    size = (a.abs() @ b.abs() + bias.abs()).amax(dim=1)
    rounding = EPS32 * (math.sqrt(case.N) + EXPS + exact.abs())
    return exact, lambda c: 2 * EPS32 * LIMBS * c * math.sqrt(case.K) * size + rounding
