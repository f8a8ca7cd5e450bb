"""PyTorch's attention, and the exact result in float64."""

import math

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tilewright.bench.measure import Call
from tilewright.bench.peers._shared import tensor
from tilewright.ops.attention.problem import EPS16, EPS32

CHECKED = 1 << 26  # scores that are compared, but at least those of one sequence
LONG = 128  # queries


def truth(case, tensors: dict):
    """Attention in float64 on the GPU, and its `spec.bound`; see `tilewright.bench.peers`."""
    count = max(1, min(case.B, CHECKED // (case.H * case.Q * case.T)))
    q, k, v = (tensors[name][:count].double() for name in "qkv")
    positions = torch.arange(case.T, device=q.device)
    hidden = (positions > positions[case.T - case.Q :, None]) if case.causal else None  # (Q, T)
    scores = q @ k.mT / math.sqrt(case.D)
    shares = (scores if hidden is None else scores.masked_fill(hidden, -math.inf)).softmax(dim=-1)
    size = (q.abs() @ k.abs().mT).amax(dim=-1, keepdim=True) / math.sqrt(case.D)
    spread, rounding = shares @ v.abs(), EPS16.get(case.dtype, 0.0)

    def allowed(c: float):
        return (EPS32 * (c * (2 * math.sqrt(case.D) * size + 4 * math.sqrt(case.T)) + 16) + rounding) * spread

    return shares @ v, allowed


def cpu(case, inputs: dict) -> dict[str, Call]:
    """PyTorch's fused attention, if its causal mask, which starts at the first key, is the same as the case's."""
    if case.causal and 1 < case.Q < case.T:
        return {}
    q, k, v = (tensor(inputs[name], "float32") for name in "qkv")
    call = torch.nn.functional.scaled_dot_product_attention
    return {"PyTorch": lambda: call(q, k, v, is_causal=case.causal and case.Q > 1)}


def gpu(case, tensors: dict) -> dict[str, Call]:
    """PyTorch's fused attention with its default choice, and cuDNN's for long prompts in 16 bits; q, k and v in the
    layout that these prefer."""
    if case.Q not in (1, case.T):
        return {}
    kind = getattr(torch, case.dtype)
    q, k, v = (tensors[name].to(kind).contiguous() for name in "qkv")  # (B, H, Q or T, D)
    causal = case.causal and case.Q > 1

    def chosen():
        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    def cudnn():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return {"PyTorch": chosen} | ({"cuDNN": cudnn} if case.Q >= LONG and case.dtype != "float32" else {})
