"""The sizes at which the bench times conv_transpose2d, their random inputs, and their float64 results."""

import dataclasses
from collections.abc import Callable

import numpy as np

from tilewright.ops.conv_transpose2d.problem import Case, Problem, bound, cost  # noqa: F401 - also for callers
from tilewright.ops.core.arrays import rounded
from tilewright.ops.core.gpu.tensors import moved, torch_dtype
from tilewright.ops.matmul.problem import DTYPES

FITS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "float32": lambda array: array,
    "bfloat16": rounded,
    "float16": lambda array: array.astype(np.float16).astype(np.float32),
    "tf32": lambda array: (array.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32),  # ten bits of fraction
}
PROBE_ROWS = 16  # images with which a rung is tested for being slow


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `conv_transpose2d`. In a class with shorter numbers they are exactly representable, so
    rounding changes nothing."""
    fit = FITS[case.dtype]
    values = {
        "x": _laid_out(rng, (case.B, case.H, case.W, case.C), case.layout, fit),
        "weights": _laid_out(rng, (*case.K, case.O, case.C), case.layout, fit),
    }
    if case.bias:
        values["bias"] = rng.standard_normal(case.O, dtype=np.float32)
    return {**values, "stride": case.stride, "padding": case.padding, "activation": case.activation}


def _laid_out(rng, shape: tuple[int, ...], layout: str, fit) -> np.ndarray:
    """Normal random numbers through `fit`, with the strides that `layout` names."""
    normal = lambda *sizes: fit(rng.standard_normal(sizes, dtype=np.float32))  # noqa: E731
    if layout == "F":
        return np.moveaxis(normal(shape[0], shape[3], *shape[1:3]), 1, 3)
    if layout == "strided":
        return normal(*(2 * n for n in shape[:3]), 3 * shape[3])[::2, ::2, ::2, ::3]
    if layout == "reversed":
        return normal(*shape)[::-1, ::-1, ::-1, ::-1]
    return normal(*shape)


def rows(case: Case) -> int:
    """The number of images."""
    return case.B


def with_rows(case: Case, count: int) -> Case:
    """The same problem with another number of images."""
    return dataclasses.replace(case, B=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung, its weights prepared."""
    if case.device != "cpu":
        return bind_tensors(case, inputs)
    from tilewright.ops.conv_transpose2d import conv_transpose2d, prepare

    rest = {name: value for name, value in inputs.items() if name in ("x", "bias", "activation")}
    packed = prepare(inputs["weights"], stride=case.stride, padding=case.padding, dtype=case.dtype)
    return lambda out=None: conv_transpose2d(weights=packed, out=out, **rest)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.conv_transpose2d.reference import conv_transpose2d

    return conv_transpose2d(**inputs)


def sizes() -> list[Case]:
    """Sizes: the four layers of the course's DCGAN, 32 images at once."""
    shapes = [(4, 512, 256, "relu"), (8, 256, 128, "relu"), (16, 128, 64, "relu"), (32, 64, 3, "tanh")]
    layers = [Case(32, H, H, C, O, bias=True, activation=name, label=f"dcgan {H}x{H}") for H, C, O, name in shapes]
    return [dataclasses.replace(case, dtype=dtype) for dtype in DTYPES for case in layers]


def device_sizes() -> list[Case]:
    """Sizes on a GPU: the same layers, with a batch that fills the GPU."""
    layers = [case for case in sizes() if case.dtype == "float32"]
    shown = ("float32", "float16")  # bfloat16 and tf32 run the same kernels as float16
    return [dataclasses.replace(case, B=1024, dtype=dtype, device="cuda") for dtype in shown for case in layers]


def bind_tensors(case, inputs: dict, device: str = "cuda"):
    """call(out=None) on tensors made of a case's NumPy inputs, weights prepared; for the bench and the tests.

    In a 16-bit class x has its dtype, as activations have.
    """
    from tilewright.ops.conv_transpose2d import conv_transpose2d, prepare

    values = moved(inputs, device)
    packed = prepare(values["weights"], stride=case.stride, padding=case.padding, dtype=case.dtype)
    options = {"bias": values.get("bias"), "activation": values["activation"]}
    x = values["x"].to(torch_dtype(case.dtype))
    return lambda out=None: conv_transpose2d(x, packed, out=out, **options)
