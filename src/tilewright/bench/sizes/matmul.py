"""The sizes at which the bench times matmul, their random inputs, and their float64 results."""

import dataclasses

import numpy as np

from tilewright.ops.core.arrays import rounded
from tilewright.ops.core.gpu.tensors import moved, torch_dtype
from tilewright.ops.matmul.problem import DEVICE_DTYPES, DTYPES, Case, Problem, bound, cost  # noqa: F401 - also for callers


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `matmul` for a case. In a class with shorter numbers they are exactly representable, so
    rounding changes nothing."""
    M, N, K = case.M, case.N, case.K
    rows = 2 * M + 3 if case.gathered else M
    values = {"a": _laid_out(rng, (*case.batch, rows, K), case.layout), "b": _laid_out(rng, (K, N), case.layout)}
    if case.bias:
        values["bias"] = _normal(rng, (N,))
    if case.residual:
        values["residual"] = _laid_out(rng, (*case.batch, M, N), case.layout)
    if case.dtype != "float32":
        short = ("a", "b", "residual")
        values = {name: _replaced(value, case.dtype) if name in short else value for name, value in values.items()}
    if case.gathered:
        values["rows"] = rng.integers(0, rows, M)
    return {**values, "activation": case.activation}


def _normal(rng, shape) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def _laid_out(rng, shape, layout: str) -> np.ndarray:
    """Normal random numbers with the strides that `layout` names."""
    if layout == "F":
        return np.swapaxes(_normal(rng, (*shape[:-2], shape[-1], shape[-2])), -1, -2)
    if layout == "strided":
        return _normal(rng, (*shape[:-2], 2 * shape[-2], 3 * shape[-1]))[..., ::2, ::3]
    if layout == "reversed":
        return _normal(rng, shape)[..., ::-1, ::-1]
    return _normal(rng, shape)


def _replaced(array: np.ndarray, dtype: str) -> np.ndarray:
    """The array with its elements rounded to a class, and with the same strides."""
    if dtype == "tf32":  # ten bits after the binary point
        array[...] = (array.copy().view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32)
    else:
        array[...] = rounded(array) if dtype == "bfloat16" else array.astype(np.float16)
    return array


def rows(case: Case) -> int:
    """The number of rows of the batch."""
    return case.M


def with_rows(case: Case, count: int) -> Case:
    """The same problem with another number of rows."""
    return dataclasses.replace(case, M=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung, its weights prepared."""
    from tilewright.ops.matmul import matmul, prepare

    if case.device != "cpu":
        return bind_tensors(case, inputs)
    rest = {name: value for name, value in inputs.items() if name != "b"}
    packed = prepare(inputs["b"], dtype=case.dtype)
    return lambda out=None: matmul(b=packed, out=out, **rest)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.matmul.reference import matmul

    inputs = dict(inputs)
    rows = inputs.pop("rows", None)
    return matmul(**inputs if rows is None else {**inputs, "a": inputs["a"][rows]})


def sizes() -> list[Case]:
    """Sizes: GPT-2's four products and its LM head, TextCNN's taps and linear layers, and square products."""
    shapes = [
        (1024, 2304, 768, "gpt2 qkv"),
        (1024, 768, 768, "gpt2 proj"),
        (1024, 3072, 768, "gpt2 mlp in"),
        (1024, 768, 3072, "gpt2 mlp out"),
        (64, 50257, 768, "gpt2 LM head"),
        (4096, 1024, 4096, "textcnn tap"),
        (1024, 2048, 4096, "textcnn linear 1"),
        (1024, 1024, 2048, "textcnn linear 2"),
        (1024, 1024, 1024, "square"),
        (2048, 2048, 2048, "square"),
    ]
    return [Case(M, N, K, dtype, label=label) for dtype in DTYPES for M, N, K, label in shapes]


def device_sizes() -> list[Case]:
    """Sizes on a GPU: square products, the models' layers as products alone, and the same with their epilogues."""
    shapes = [
        (4096, 4096, 4096, "square"),
        (8192, 8192, 8192, "square"),
        (8192, 2304, 768, "gpt2 qkv"),
        (8192, 768, 768, "gpt2 proj"),
        (8192, 3072, 768, "gpt2 mlp in"),
        (8192, 768, 3072, "gpt2 mlp out"),
        (8192, 50257, 768, "gpt2 LM head"),
        (16384, 1024, 4096, "textcnn tap"),
        (16384, 2048, 4096, "textcnn linear 1"),
        (16384, 1024, 2048, "textcnn linear 2"),
        (16384, 2, 512, "textcnn last linear"),
    ]
    layers = [
        Case(8192, 2304, 768, bias=True, label="gpt2 qkv with bias"),
        Case(8192, 768, 768, bias=True, residual=True, label="gpt2 proj with bias, residual"),
        Case(8192, 3072, 768, bias=True, activation="gelu_tanh", label="gpt2 mlp in with bias, GELU"),
        Case(8192, 768, 3072, bias=True, residual=True, label="gpt2 mlp out with bias, residual"),
        Case(16384, 2048, 4096, bias=True, activation="relu", label="textcnn linear 1 with bias, ReLU"),
    ]
    every = [Case(M, N, K, label=label) for M, N, K, label in shapes] + layers
    return [dataclasses.replace(case, dtype=dtype, device="cuda") for dtype in DEVICE_DTYPES for case in every]


def bind_tensors(case, inputs: dict, device: str = "cuda"):
    """call(out=None) on tensors made of a case's NumPy inputs, weights prepared; for the bench and the tests.

    In a 16-bit class a and the residual have its dtype, as activations have.
    """
    from tilewright.ops.matmul import matmul, prepare

    values = moved(inputs, device)
    for name in ("a", "residual") if case.dtype.endswith("16") else ():
        if name in values:
            values[name] = values[name].to(torch_dtype(case.dtype))
    weights = values.pop("b")
    packed = prepare(weights, dtype=case.dtype)
    return lambda out=None: matmul(b=packed, out=out, **values)
