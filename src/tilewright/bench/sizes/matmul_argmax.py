"""The sizes at which the bench times matmul_argmax, their random inputs, and their float64 results."""

import dataclasses

import numpy as np

from tilewright.ops.core.arrays import rounded
from tilewright.ops.core.gpu.tensors import kind, moved, torch_dtype
from tilewright.ops.matmul.problem import DEVICE_DTYPES
from tilewright.ops.matmul_argmax.problem import Case, Problem, bound, cost  # noqa: F401 - also for callers


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `matmul_argmax`. b is the transpose of a row-major matrix, as an embedding is."""
    a = rng.standard_normal((case.M, case.K), dtype=np.float32)
    b = rng.standard_normal((case.N, case.K), dtype=np.float32)
    if case.alike:
        b = np.float32(1e-4) * b + b[:1]
    if case.dtype == "float32":
        return {"a": a, "b": b.T}
    return {"a": as_class(a, case.dtype), "b": as_class(b, case.dtype).T}


def as_class(array: np.ndarray, dtype: str) -> np.ndarray:
    """The elements of a float32 array, rounded to a shorter class."""
    if dtype == "tf32":  # ten bits after the binary point
        return (array.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32)
    return rounded(array) if dtype == "bfloat16" else array.astype(np.float16).astype(np.float32)


def rows(case: Case) -> int:
    """The number of rows of the batch."""
    return case.M


def with_rows(case: Case, count: int) -> Case:
    """The same problem with another number of rows."""
    return dataclasses.replace(case, M=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung, its weights prepared. It returns the values."""

    from tilewright.ops.matmul_argmax import matmul_argmax, prepare

    if case.device != "cpu":
        return bind_tensors(case, inputs)
    prepared = prepare(inputs["b"], dtype=case.dtype)

    def call(out=None):
        _, value = matmul_argmax(inputs["a"], prepared)
        if out is None:
            return value
        out[...] = value
        return out

    return call


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 values."""
    from tilewright.ops.matmul_argmax.reference import matmul_argmax

    return matmul_argmax(**inputs)[1]


def sizes() -> list[Case]:
    """Sizes: GPT-2's LM head with one sequence, a batch, a large batch."""
    return [
        Case(M, 50257, 768, dtype, label=f"gpt2 LM head, {M} rows")
        for dtype in ("float32", "bfloat16")
        for M in (1, 64, 512)
    ]


def device_sizes() -> list[Case]:
    """Sizes on a GPU: GPT-2's LM head with a batch of generation, and with a large batch."""
    return [
        Case(M, 50257, 768, dtype, label=f"gpt2 LM head, {M} rows", device="cuda")
        for dtype in DEVICE_DTYPES
        for M in (64, 6400)
    ]


def bind_tensors(case, inputs: dict, device: str = "cuda"):
    """call(out=None) on tensors made of a case's NumPy inputs, weights prepared. It returns the values; if out is None,
    always in the same tensor."""
    import torch

    from tilewright.ops.matmul_argmax import matmul_argmax, prepare

    values = moved(inputs, device)
    a = values["a"].to(torch_dtype(case.dtype))
    prepared = prepare(values["b"], dtype=case.dtype)
    index, value = a.new_empty(len(a), dtype=torch.int64), a.new_empty(len(a), dtype=torch.float32)

    def call(out=None):
        if out is not None and kind(out) == "float32":
            return matmul_argmax(a, prepared, (index, out))[1]
        matmul_argmax(a, prepared, (index, value))
        return value if out is None else out.copy_(value)

    return call
