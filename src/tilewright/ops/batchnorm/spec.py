"""batchnorm's problems, costs, tolerances and sizes."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops.core.gpu.rows import shortened
from tilewright.ops.matmul.spec import ACTIVATIONS, EPS32, STEEPEST

__all__ = ["ACTIVATIONS"]

DEVICE_DTYPES = ("float32", "bfloat16", "float16")  # accuracy classes on a GPU
PROBE_ROWS = 1 << 14  # rows that fill a GPU


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at: the number of channels and the device."""

    C: int
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """Pixels of C channels: their shape and layout, the mean around which they lie, the activation."""

    shape: tuple[int, ...]
    layout: str = "C"  # "C", "F", "strided": every third number
    offset: float = 0.0
    activation: str | None = None
    eps: float = 1e-5
    dtype: str = "float32"
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        words = ["x".join(map(str, self.shape)), self.layout if self.layout != "C" else "", self.activation or ""]
        words += [f"around{self.offset:g}" if self.offset else "", self.dtype if self.dtype != "float32" else ""]
        return "-".join(w for w in words if w)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.shape[-1], self.dtype, self.device)


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `batchnorm`, the statistics near those of x."""
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
    """How many pixels there are."""
    return math.prod(case.shape[:-1])


def with_rows(case: Case, count: int) -> Case:
    """Another number of pixels of as many channels."""
    return dataclasses.replace(case, shape=(count, case.shape[-1]))


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung."""
    from tilewright.ops.batchnorm import batchnorm

    if case.device != "cpu":
        from tilewright.ops.batchnorm.device import bind as bind_there

        return bind_there(case, inputs)
    return lambda out=None: batchnorm(**inputs, out=out)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.batchnorm.reference import batchnorm

    return batchnorm(**inputs)


def cost(case: Case) -> tuple[float, float]:
    """(operations: a product and a sum; bytes: in and out once)."""
    numbers = math.prod(case.shape)
    return 2.0 * numbers, (4.0 if case.dtype.endswith("16") else 8.0) * numbers + 8.0 * case.shape[-1]


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """A few roundings of the largest term: with s = |gamma| / sqrt(variance + eps), c * 2 eps32 * (s * (|x| + |mean|) +
    |beta|), and of the result after the activation.

    Scale s and shift beta - s * mean are rounded once each, x * s + shift once more.
    """
    x, gamma, beta, mean, variance = (
        np.abs(inputs[name].astype(np.float64)) for name in ("x", "gamma", "beta", "mean", "variance")
    )
    terms = gamma / np.sqrt(variance + inputs["eps"]) * (x + mean) + beta
    slope = STEEPEST if case.activation else 1.0
    return EPS32 * slope * (2 * c * terms + 4 * np.abs(result)) + np.finfo(np.float32).tiny


def cases() -> list[Case]:
    """One number, vectors and their neighbours, images, none; layouts; channels far from zero; activations."""
    shapes = [
        (1, 1),
        (3, 8),
        (5, 7),
        (2, 4, 4, 3),
        (7, 17),
        (3, 63),
        (2, 5, 64),
        (700, 129),
        (2, 10_007),
        (0, 5),
        (19,),
    ]
    layouts = [Case((6, 5, 40), layout) for layout in ("F", "strided")]
    functions = [Case((3, 5, 36), activation=name) for name in ACTIVATIONS if name]
    return [Case(s) for s in shapes] + layouts + functions + [Case((90, 300), offset=100.0)]


def sizes() -> list[Case]:
    """DCGAN's, 32 images at once, which a model folds into the weights before."""
    shapes = [(32, 4, 4, 512), (32, 8, 8, 256), (32, 16, 16, 128), (32, 32, 32, 64)]
    return [Case(shape, activation="relu", label=f"dcgan {shape[1]}x{shape[1]}") for shape in shapes]


def device_sizes() -> list[Case]:
    """What the bench times on a GPU: DCGAN's images, 1,024 at once."""
    found = [
        Case((1024, 32, 32, 64), activation="relu", label="dcgan 32x32"),
        Case((1024, 32, 32, 64), activation="relu", dtype="float16", label="dcgan 32x32"),
    ]
    return [dataclasses.replace(case, device="cuda") for case in found]
