"""The sizes at which the bench times conv1d, their random inputs, and their float64 results."""

import dataclasses

import numpy as np

from tilewright.ops.conv1d.problem import Case, Problem, bound, cost  # noqa: F401 - also for callers
from tilewright.ops.core.arrays import rounded
from tilewright.ops.core.gpu.tensors import moved
from tilewright.ops.matmul.problem import DTYPES

PROBE_ROWS = 16  # sentences with which a rung is tested for being slow


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `conv1d` for a case. In a class with shorter numbers they are exactly representable."""

    def fit(array: np.ndarray) -> np.ndarray:
        if case.dtype == "tf32":  # ten bits after the binary point
            return (array.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32)
        if case.dtype == "float16":
            return array.astype(np.float16).astype(np.float32)
        return rounded(array) if case.dtype == "bfloat16" else array

    values = {
        "x": _laid_out(rng, (case.B, case.C, case.L), case.layout, fit),
        "weight": _laid_out(rng, (case.O, case.C, case.K), case.layout, fit),
    }
    if case.bias:
        values["bias"] = rng.standard_normal(case.O, dtype=np.float32)
    window = {"stride": case.stride, "padding": case.padding, "dilation": case.dilation}
    return {**values, **window, "activation": case.activation, "pool": case.pool}


def _laid_out(rng, shape: tuple[int, int, int], layout: str, fit) -> np.ndarray:
    """Normal random numbers through `fit`, with the strides that `layout` names."""
    first, second, third = shape
    normal = lambda *sizes: fit(rng.standard_normal(sizes, dtype=np.float32))  # noqa: E731
    if layout == "F":
        return normal(first, third, second).swapaxes(1, 2)
    if layout == "strided":
        return normal(2 * first, 2 * second, 3 * third)[::2, ::2, ::3]
    if layout == "reversed":
        return normal(*shape)[::-1, ::-1, ::-1]
    return normal(*shape)


def rows(case: Case) -> int:
    """The number of rows of the batch."""
    return case.B


def with_rows(case: Case, count: int) -> Case:
    """The same problem with another number of rows."""
    return dataclasses.replace(case, B=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung, its weights prepared."""
    from tilewright.ops.conv1d import conv1d, prepare

    if case.device != "cpu":
        return bind_tensors(case, inputs)
    rest = {name: value for name, value in inputs.items() if name != "weight"}
    packed = prepare(inputs["weight"], dtype=case.dtype)
    return lambda out=None: conv1d(weight=packed, out=out, **rest)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.conv1d.reference import conv1d

    return conv1d(**inputs)


def sizes() -> list[Case]:
    """Sizes: TextCNN's four branches as the model calls them, and few channels over long signals."""
    fused = Case(16, 16, 1024, 4096, 3, bias=True, activation="relu", pool="max", label="textcnn")
    branches = [dataclasses.replace(fused, K=K) for K in (3, 5, 7, 9)]
    few = [Case(1, 4096, 32, 1, 9, label="waveform"), Case(16, 512, 64, 64, 5, padding=2, label="features")]
    return [dataclasses.replace(case, dtype=dtype) for dtype in DTYPES for case in branches + few]


def device_sizes() -> list[Case]:
    """Sizes on a GPU: TextCNN's narrowest branch in both classes, and few channels over long signals."""
    fused = Case(256, 16, 1024, 4096, 3, bias=True, activation="relu", pool="max", label="textcnn")
    few = [Case(64, 4096, 32, 1, 9, label="waveform"), Case(64, 512, 64, 64, 5, padding=2, label="features")]
    cases = [fused, dataclasses.replace(fused, dtype="bfloat16"), *few]
    return [dataclasses.replace(case, device="cuda") for case in cases]


def bind_tensors(case, inputs: dict, device: str = "cuda"):
    """call(out=None) on tensors made of a case's NumPy inputs, weights prepared; for the bench and the tests."""
    from tilewright.ops.conv1d import conv1d, prepare

    values = moved(inputs, device)
    packed = prepare(values.pop("weight"), dtype=case.dtype)
    return lambda out=None: conv1d(weight=packed, out=out, **values)
