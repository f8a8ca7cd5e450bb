"""The sizes at which the bench times layernorm, their random inputs, and their float64 results."""

import dataclasses
import math

import numpy as np

from tilewright.ops.core.gpu.rows import tensors_of
from tilewright.ops.layernorm.problem import Case, Problem, bound, cost  # noqa: F401 - also for callers

PROBE_ROWS = 1 << 14  # rows that are enough to fill a GPU


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `layernorm`."""
    *outer, C = case.shape
    if case.layout == "F":
        x = rng.standard_normal((C, *outer), dtype=np.float32)
        x = np.moveaxis(x, 0, -1)
    else:
        x = rng.standard_normal((*outer, 3 * C if case.layout == "strided" else C), dtype=np.float32)
        x = x[..., ::3] if case.layout == "strided" else x
    x += np.float32(case.offset)
    weight, bias = rng.standard_normal((2, C), dtype=np.float32)
    return {"x": x, "weight": weight, "bias": bias, "eps": case.eps}


def rows(case: Case) -> int:
    """The number of rows."""
    return math.prod(case.shape[:-1])


def with_rows(case: Case, count: int) -> Case:
    """The same width with another number of rows."""
    return dataclasses.replace(case, shape=(count, case.shape[-1]))


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung."""
    from tilewright.ops.layernorm import layernorm

    if case.device != "cpu":
        return bind_tensors(case, inputs)
    return lambda out=None: layernorm(**inputs, out=out)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.layernorm.reference import layernorm

    return layernorm(**inputs)


def sizes() -> list[Case]:
    """GPT-2's sizes: the positions of a prefill, of a decode step, one position alone; the widest model."""
    return [
        Case((1024, 768), label="gpt2"),
        Case((64, 768), label="gpt2 decode"),
        Case((1, 768), label="gpt2 one position"),
        Case((1024, 1600), label="gpt2-xl"),
    ]


def device_sizes() -> list[Case]:
    """Sizes on a GPU: the positions of 6,400 prompts of 16 tokens in GPT-2, in two classes, and in the widest model."""
    found = [
        Case((102400, 768), label="gpt2"),
        Case((102400, 768), dtype="bfloat16", label="gpt2"),
        Case((65536, 1600), dtype="bfloat16", label="gpt2-xl"),
    ]
    return [dataclasses.replace(case, device="cuda") for case in found]


def bind_tensors(case, inputs: dict, device: str = "cuda"):
    """call(out=None) on tensors made of a case's NumPy inputs; for the bench and the tests. x stays float32."""
    from tilewright.ops.layernorm import layernorm

    values = tensors_of(case, inputs, device)
    return lambda out=None: layernorm(**values, out=out)
