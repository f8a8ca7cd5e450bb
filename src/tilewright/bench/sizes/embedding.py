"""The sizes at which the bench times embedding, their random inputs, and their float64 results."""

import dataclasses
import math

import numpy as np

from tilewright.ops.core.gpu.rows import shortened, tensors_of
from tilewright.ops.embedding.problem import Case, Problem, bound, cost  # noqa: F401 - also for callers

PROBE_ROWS = 1 << 14  # rows that are enough to fill a GPU


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `embedding`."""
    strided = case.layout == "strided"
    table = rng.standard_normal((case.V, 2 * case.C if strided else case.C), dtype=np.float32)
    table = table[:, ::2] if strided else table
    inputs = {"ids": rng.integers(0, case.V, case.shape, dtype=np.int32), "table": shortened(table, case.dtype)}
    if case.positions:
        position_table = rng.standard_normal((case.positions, case.C), dtype=np.float32)
        inputs["positions"] = rng.integers(0, case.positions, case.shape)
        inputs["position_table"] = shortened(position_table, case.dtype)
    return inputs


def rows(case: Case) -> int:
    """The number of rows that are looked up."""
    return math.prod(case.shape)


def with_rows(case: Case, count: int) -> Case:
    """The same table with another number of look-ups."""
    return dataclasses.replace(case, shape=(count,))


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung."""
    from tilewright.ops.embedding import embedding

    if case.device != "cpu":
        return bind_tensors(case, inputs)
    return lambda out=None: embedding(**inputs, out=out)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.embedding.reference import embedding

    return embedding(**inputs)


def sizes() -> list[Case]:
    """Sizes: the look-ups of TextCNN and GPT-2."""
    return [Case((1024, 16), 21635, 4096, label="textcnn"), Case((4096, 16), 50257, 768, label="gpt2")]


def device_sizes() -> list[Case]:
    """Sizes on a GPU: GPT-2's look-up of 6,400 prompts of 16 tokens, in two classes."""
    found = [
        Case((102400,), 50257, 768, label="gpt2", positions=1024),
        Case((102400,), 50257, 768, label="gpt2", positions=1024, dtype="bfloat16"),
    ]
    return [dataclasses.replace(case, device="cuda") for case in found]


def bind_tensors(case, inputs: dict, device: str = "cuda"):
    """call(out=None) on tensors made of a case's NumPy inputs; for the bench and the tests."""
    from tilewright.ops.embedding import embedding

    values = tensors_of(case, inputs, device, "table", "position_table")
    return lambda out=None: embedding(**values, out=out)
