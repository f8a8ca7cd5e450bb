"""The sizes at which the bench times pool, their random inputs, and their float64 results."""

import dataclasses

import numpy as np

from tilewright.ops.core.gpu.rows import shortened, tensors_of
from tilewright.ops.pool.problem import Case, Problem, bound, cost, lengths  # noqa: F401 - also for callers

PROBE_ROWS = 1 << 10  # texts that are enough to fill a GPU


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments: x, begin, end."""
    counts = lengths(case.texts, case.longest)
    end = np.cumsum(counts + case.gap)
    R = int(end[-1]) if len(end) else 0
    x = rng.standard_normal((R, case.C + 3 if case.layout == "strided" else case.C), dtype=np.float32)
    return {"x": shortened(x, case.dtype)[:, : case.C], "begin": end - counts, "end": end}


def rows(case: Case) -> int:
    """The number of texts."""
    return case.texts


def with_rows(case: Case, count: int) -> Case:
    """The same width with another number of texts."""
    return dataclasses.replace(case, texts=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung."""
    from tilewright.ops.pool import pool

    if case.device != "cpu":
        return bind_tensors(case, inputs)
    return lambda out=None: pool(**inputs, out=out)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.pool.reference import pool

    return pool(**inputs)


def sizes() -> list[Case]:
    """Texts of MiniLM and of BERT-base: short ones as film reviews, and long ones."""
    return [
        Case(64, 56, 384, label="minilm"),
        Case(64, 56, 768, label="bert"),
        Case(8, 512, 768, label="bert, long texts"),
    ]


def device_sizes() -> list[Case]:
    """Sizes on a GPU: the texts of a pass, in two classes."""
    found = [
        Case(4096, 56, 384, label="minilm"),
        Case(4096, 56, 384, dtype="bfloat16", label="minilm"),
        Case(512, 512, 768, dtype="bfloat16", label="bert, long texts"),
    ]
    return [dataclasses.replace(case, device="cuda") for case in found]


def bind_tensors(case, inputs: dict, device: str = "cuda"):
    """call(out=None) on tensors made of a case's NumPy inputs; for the bench and the tests."""
    from tilewright.ops.pool import pool

    values = tensors_of(case, inputs, device, "x")
    return lambda out=None: pool(**values, out=out)
