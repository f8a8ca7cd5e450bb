"""What matmul's problems are: their choice key, costs, tolerances, and the sizes at which they are tested and timed."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops.core.arrays import rounded

ACTIVATIONS = (None, "relu", "gelu_tanh", "gelu", "tanh")
STEEPEST = 1.13  # the largest slope of an activation, GELU's: it may amplify the error of its argument by that
DTYPES = ("float32", "bfloat16")
DEVICE_DTYPES = (*DTYPES, "float16", "tf32")  # accuracy classes on a GPU
EPS32 = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at: columns, depth, accuracy class, device.

    The number of rows is not in it.
    """

    N: int
    K: int
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """One product to test or to time: sizes, and what is special about its operands."""

    M: int
    N: int
    K: int
    dtype: str = "float32"
    batch: tuple[int, ...] = ()
    bias: bool = False
    activation: str | None = None
    residual: bool = False
    gathered: bool = False  # a's rows picked by an index
    layout: str = "C"  # of both operands: "C", "F", "strided", "reversed"
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        extras = [x for x in ("bias", "residual", "gathered") if getattr(self, x)] + [self.activation or ""]
        batch = "x".join(map(str, self.batch)) + ":" if self.batch else ""
        words = [f"{batch}{self.M}x{self.N}x{self.K}", self.dtype, self.layout if self.layout != "C" else "", *extras]
        return "-".join(w for w in words if w)

    @property
    def problem(self) -> Problem:
        return Problem(self.N, self.K, self.dtype, self.device)


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `matmul` for a case; in a class of shorter numbers they are such, so that rounding them
    changes nothing."""
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
    """Normal numbers with the strides that `layout` names."""
    if layout == "F":
        return np.swapaxes(_normal(rng, (*shape[:-2], shape[-1], shape[-2])), -1, -2)
    if layout == "strided":
        return _normal(rng, (*shape[:-2], 2 * shape[-2], 3 * shape[-1]))[..., ::2, ::3]
    if layout == "reversed":
        return _normal(rng, shape)[..., ::-1, ::-1]
    return _normal(rng, shape)


def _replaced(array: np.ndarray, dtype: str) -> np.ndarray:
    """The array, its numbers rounded to those of a class, with the same strides."""
    if dtype == "tf32":  # ten bits behind the point
        array[...] = (array.copy().view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32)
    else:
        array[...] = rounded(array) if dtype == "bfloat16" else array.astype(np.float16)
    return array


def rows(case: Case) -> int:
    """How many rows of the batch a case has."""
    return case.M


def with_rows(case: Case, count: int) -> Case:
    """The same problem with another number of rows."""
    return dataclasses.replace(case, M=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung, its weights prepared."""
    from tilewright.ops.matmul import matmul, prepare

    if case.device != "cpu":
        from tilewright.ops.matmul.device import bind as bind_there

        return bind_there(case, inputs)
    rest = {name: value for name, value in inputs.items() if name != "b"}
    packed = prepare(inputs["b"], dtype=case.dtype)
    return lambda out=None: matmul(b=packed, out=out, **rest)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.matmul.reference import matmul

    inputs = dict(inputs)
    rows = inputs.pop("rows", None)
    return matmul(**inputs if rows is None else {**inputs, "a": inputs["a"][rows]})


def cost(case: Case) -> tuple[float, float]:
    """(floating-point operations, bytes moved if every operand is touched once); see `device.bind` for what activations
    are on a GPU."""
    products = math.prod(case.batch) * case.M
    short = 2 if case.dtype.endswith("16") else 4
    word = short if case.device != "cpu" else 4  # of activations
    activations = products * (case.K + case.N * (2 if case.residual else 1))
    return 2.0 * products * case.N * case.K, float(activations * word + case.K * case.N * short)


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The largest error allowed, elementwise: c * eps32 * sqrt(K) * (|a| @ |b|) and a rounding for each later addition.

    result: the reference's. c: the rung's constant: 1 for scalar chains, blocked sums and 16-bit products of operands
    that are exact in 16 bits; 10 where float32 operands are split in limbs.
    """
    a = inputs["a"][..., inputs["rows"], :] if "rows" in inputs else inputs["a"]
    size = np.abs(a.astype(np.float64)) @ np.abs(inputs["b"].astype(np.float64))
    later = (4 if case.activation else 1) * np.abs(result) + sum(
        np.abs(inputs[x]) for x in ("bias", "residual") if x in inputs
    )
    slope = STEEPEST if case.activation else 1.0
    return EPS32 * slope * (c * math.sqrt(max(case.K, 1)) * size + 2 * later) + np.finfo(np.float32).tiny


def cases() -> list[Case]:
    """Adversarial sizes: nothing, one, primes, a tile and its neighbours, long sums; every layout and epilogue."""
    edges = [
        (1, 1, 1),
        (0, 5, 3),
        (3, 0, 5),
        (3, 5, 0),
        (2, 3, 7),
        (12, 32, 8),
        (11, 31, 7),
        (13, 33, 9),
        (17, 70, 129),
    ]
    found = [Case(*size) for size in edges]
    found += [Case(1, 96, 40), Case(200, 33, 65), Case(5, 40, 1537), Case(30, 1, 385), Case(1, 1, 4099)]
    found += [Case(14, 37, 50, layout=layout) for layout in ("F", "strided", "reversed")]
    epilogues = [(True, None, False), (False, "relu", False), (False, None, True), (True, "relu", True)]
    epilogues += [(True, name, False) for name in ("gelu_tanh", "gelu", "tanh")]
    found += [Case(19, 45, 33, bias=b, activation=act, residual=r) for b, act, r in epilogues]
    found += [Case(7, 0, 0, bias=True), Case(4, 6, 0, bias=True, residual=True, activation="relu")]
    found += [Case(6, 20, 31, batch=(3,)), Case(5, 9, 17, batch=(2, 2), bias=True, residual=True, layout="strided")]
    found += [Case(25, 40, 64, gathered=True), Case(9, 33, 30, gathered=True, layout="F", bias=True)]
    return found + [Case(**{**vars(case), "dtype": "bfloat16"}) for case in found]


def sizes() -> list[Case]:
    """What the bench times: GPT-2's four products and its LM head, TextCNN's taps and linear layers, and squares."""
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
    """What the bench times on a GPU: squares, the models' layers as bare products, and as they stand in the models."""
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
