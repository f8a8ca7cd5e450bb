"""The sizes at which the bench times batchnorm, their random inputs, and their float64 results."""

import dataclasses
import math

import numpy as np

from tilewright.ops.batchnorm.problem import Case, Problem, bound, cost  # noqa: F401 - also for callers
from tilewright.ops.core.gpu.rows import shortened, tensors_of

PROBE_ROWS = 1 << 14  # rows that are enough to fill a GPU


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `batchnorm`, with statistics close to those of x."""
    *outer, C = case.shape
    if case.layout == "F":
        x = np.moveaxis(rng.standard_normal((C, *outer), dtype=np.float32), 0, -1)
    else:
        x = rng.standard_normal((*outer, 3 * C if case.layout == "strided" else C), dtype=np.float32)
        x = x[..., ::3] if case.layout == "strided" else x
    x += np.float32(case.offset)
    gamma, beta, mean, variance = rng.standard_normal((4, C), dtype=np.float32)
    values = {"gamma": gamma, "beta": beta, "mean": mean + np.float32(case.offset), "variance": variance**2}
    return {"x": shortened(x, case.dtype), **values, "eps": case.eps, "activation": case.activation}


def rows(case: Case) -> int:
    """The number of pixels."""
    return math.prod(case.shape[:-1])


def with_rows(case: Case, count: int) -> Case:
    """The same number of channels with another number of pixels."""
    return dataclasses.replace(case, shape=(count, case.shape[-1]))


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung."""
    from tilewright.ops.batchnorm import batchnorm

    if case.device != "cpu":
        return bind_tensors(case, inputs)
    return lambda out=None: batchnorm(**inputs, out=out)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.batchnorm.reference import batchnorm

    return batchnorm(**inputs)


def sizes() -> list[Case]:
    """DCGAN's sizes, 32 images at once. A model folds these norms into its weights instead."""
    shapes = [(32, 4, 4, 512), (32, 8, 8, 256), (32, 16, 16, 128), (32, 32, 32, 64)]
    return [Case(shape, activation="relu", label=f"dcgan {shape[1]}x{shape[1]}") for shape in shapes]


def device_sizes() -> list[Case]:
    """Sizes on a GPU: DCGAN's images, 1,024 at once."""
    found = [
        Case((1024, 32, 32, 64), activation="relu", label="dcgan 32x32"),
        Case((1024, 32, 32, 64), activation="relu", dtype="float16", label="dcgan 32x32"),
    ]
    return [dataclasses.replace(case, device="cuda") for case in found]


def bind_tensors(case, inputs: dict, device: str = "cuda"):
    """call(out=None) on tensors made of a case's NumPy inputs; for the bench and the tests."""
    from tilewright.ops.batchnorm import batchnorm

    values = tensors_of(case, inputs, device, "x")
    return lambda out=None: batchnorm(**values, out=out)
