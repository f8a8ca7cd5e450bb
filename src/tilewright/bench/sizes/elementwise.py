"""The sizes at which the bench times elementwise, their random inputs, and their float64 results."""

import dataclasses
import math

import numpy as np

from tilewright.ops.core.gpu.rows import shortened, tensors_of
from tilewright.ops.elementwise.problem import Case, Problem, bound, cost  # noqa: F401 - also for callers
from tilewright.ops.elementwise.reference import FUNCTIONS

PROBE_ROWS = 1 << 14  # rows that are enough to fill a GPU


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random argument of a function."""
    *outer, C = case.shape
    if case.layout == "F":
        x = np.moveaxis(rng.standard_normal((C, *outer), dtype=np.float32), 0, -1)
    else:
        x = rng.standard_normal((*outer, 3 * C if case.layout == "strided" else C), dtype=np.float32)
        x = x[..., ::3] if case.layout == "strided" else x
    x *= np.float32(case.spread)
    return {"x": shortened(x, case.dtype)}


def rows(case: Case) -> int:
    """The number of rows."""
    return math.prod(case.shape[:-1])


def with_rows(case: Case, count: int) -> Case:
    """The same width with another number of rows."""
    return dataclasses.replace(case, shape=(count, case.shape[-1]))


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung."""
    from tilewright.ops import elementwise

    if case.device != "cpu":
        return bind_tensors(case, inputs)
    if case.function.startswith("gelu"):
        form = "tanh" if case.function == "gelu_tanh" else "none"
        return lambda out=None: elementwise.gelu(inputs["x"], approximate=form, out=out)
    function = getattr(elementwise, case.function)
    return lambda out=None: function(inputs["x"], out=out)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    return FUNCTIONS[case.function](inputs["x"])


def sizes() -> list[Case]:
    """GPT-2's sizes: the hidden layer of a prefill and of a decode step; the other functions at the first size."""
    return [
        Case("gelu_tanh", (1024, 3072), label="gpt2"),
        Case("gelu_tanh", (64, 3072), label="gpt2 decode"),
        Case("gelu", (1024, 3072), label="exact form"),
        Case("tanh", (1024, 3072)),
        Case("relu", (1024, 3072)),
    ]


def device_sizes() -> list[Case]:
    """Sizes on a GPU: GPT-2's hidden layer at 16,384 positions."""
    shape = (16384, 3072)
    found = [Case("gelu_tanh", shape, dtype=dtype, label="gpt2 hidden") for dtype in ("float32", "bfloat16")]
    found += [Case("tanh", shape)]
    return [dataclasses.replace(case, device="cuda") for case in found]


def bind_tensors(case, inputs: dict, device: str = "cuda"):
    """call(out=None) on a tensor made of a case's NumPy input; for the bench and the tests."""
    from tilewright.ops.elementwise import apply

    x = tensors_of(case, inputs, device, "x")["x"]
    return lambda out=None: apply(case.function, x, out)
