"""The sizes at which the bench times attention, their random inputs, and their float64 results."""

import dataclasses
from typing import Any

import numpy as np

from tilewright.ops.attention import Cache, DeviceCache, append, append_and_attend, attend, checked_spans, span
from tilewright.ops.attention.problem import Case, Problem, bound, cost  # noqa: F401 - also for callers
from tilewright.ops.core.arrays import BFLOAT16, rounded
from tilewright.ops.core.gpu.tensors import moved, torch_dtype


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `attention`, scaled so that some keys matter more than others.

    16-bit arguments are exactly representable, so rounding changes nothing.
    """
    B, H, Q, T, D = case.B, case.H, case.Q, case.T, case.D
    values = {name: rng.standard_normal((B, H, n, D), dtype=np.float32) for name, n in (("q", Q), ("k", T), ("v", T))}
    if case.dtype == "bfloat16":
        values = {name: rounded(x) for name, x in values.items()}
    elif case.dtype == "float16":
        values = {name: x.astype(np.float16).astype(np.float32) for name, x in values.items()}
    return {**values, "causal": case.causal}


def rows(case: Case) -> int:
    """The number of queries."""
    return case.B * case.Q


def with_rows(case: Case, count: int) -> Case:
    """The same problem with fewer sequences."""
    return dataclasses.replace(case, B=max(1, count // max(case.Q, 1)))


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung; keys and values are already in the cache."""
    if case.device != "cpu":
        return bind_tensors(case, inputs)
    B, H, Q, T, D = case.B, case.H, case.Q, case.T, case.D
    kind = np.float32 if case.dtype == "float32" else BFLOAT16
    q, k, v = (inputs[name].swapaxes(1, 2).astype(kind, order="C").reshape(-1, H * D) for name in "qkv")
    cache = Cache.empty(B, H, T, D, case.dtype)
    append(k, v, cache, [span(b, 0, T, b * T) for b in range(B)])
    spans = np.array([span(b, T - Q, Q, b * Q) for b in range(B)], np.int64)

    def call(out=None):
        found = attend(q, cache, spans, causal=case.causal).reshape(B, Q, H, D).swapaxes(1, 2)
        if out is None:
            return found
        out[...] = found
        return out

    return call


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.attention.reference import attention

    return attention(**inputs)


def sizes() -> list[Case]:
    """GPT-2's sizes: prefill and decode of the course, a long prompt, long decoding."""
    return [
        Case(64, 12, 16, 16, 64, label="gpt2 prefill"),
        Case(256, 12, 1, 20, 64, label="gpt2 decode"),
        Case(64, 12, 1, 128, 64, label="gpt2 decode, longer"),
        Case(1, 12, 1024, 1024, 64, label="gpt2 full context"),
        Case(1, 12, 1, 1024, 64, label="gpt2 decode, full context"),
    ]


def device_sizes() -> list[Case]:
    """Sizes on a GPU: a part of the course's prefill and decode, longer decoding, long prompts, texts of an encoder."""
    shapes = [(1600, 12, 16, 16, "gpt2 prefill"), (1600, 12, 1, 20, "gpt2 decode")]
    longer = [(512, 12, 1, 150, "gpt2 decode, longer"), (8, 12, 1024, 1024, "gpt2 full context")]
    found = [(shape, "float32") for shape in shapes] + [(shape, "bfloat16") for shape in shapes + longer]
    texts = [(2048, 32, "encoder, short texts"), (128, 512, "encoder, long texts")]
    encoder = [Case(B, 12, T, T, 64, False, "bfloat16", label, "cuda") for B, T, label in texts]
    decoder = [Case(B, H, Q, T, 64, dtype=dtype, label=label, device="cuda") for (B, H, Q, T, label), dtype in found]
    return decoder + encoder


def bind_tensors(case, inputs: dict, device: str = "cuda"):
    """call(out=None) on tensors made of a case's NumPy inputs, for the bench and the tests.

    Keys and values are already in the cache; a single query appends its own, as in decoding. For an
    encoder's whole texts, keys and values are passed in the call and not kept in the cache. In a 16-bit class q has its
    dtype. The result is (B, H, Q, D), stored in the order of the rows; `out` should be stored in the same order.
    """
    import torch

    values = moved({name: inputs[name] for name in "qkv"}, device)
    B, H, Q, T, D = case.B, case.H, case.Q, case.T, case.D
    q, k, v = (values[name].swapaxes(1, 2).reshape(-1, H * D).to(torch_dtype(case.dtype)) for name in "qkv")
    cache = DeviceCache.on(device, B, H, T, D, case.dtype)
    append(k, v, cache, [span(b, 0, T, b * T) for b in range(B)])
    spans = checked_spans([span(b, T - Q, Q, b * Q) for b in range(B)], cache, B * Q)
    decode = Q == 1 and case.causal
    slots = torch.arange(B, dtype=torch.int32, device=device)
    positions = torch.full_like(slots, T - 1)
    last_k, last_v = (x.view(B, T, H * D)[:, -1] for x in (k, v))
    brought: dict[str, Any] = {"new": (k, v), "keep": False} if Q == T and not case.causal else {}

    def call(out=None):
        rows = None if out is None else out.transpose(1, 2)
        target = rows.reshape(B * Q, H * D) if rows is not None and rows.is_contiguous() else None
        if decode:
            found = append_and_attend(q, last_k, last_v, cache, slots, positions, longest=T, out=target)
        else:
            found = attend(q, cache, spans, causal=case.causal, out=target, **brought)
        found = found.view(B, Q, H, D).transpose(1, 2)
        return found if out is None else out if target is not None else out.copy_(found)

    return call
