"""attention's problem: what the choice of a rung depends on, cost and error bound."""

import math
from dataclasses import dataclass

import numpy as np

EPS32 = float(np.finfo(np.float32).eps)
DTYPES = ("float32", "bfloat16")
DEVICE_DTYPES = (*DTYPES, "float16")  # accuracy classes on a GPU
EPS16 = {"bfloat16": 2.0**-7, "float16": 2.0**-10}  # the rounding error of softmax weights


@dataclass(frozen=True)
class Problem:
    """Everything that decides the choice of a rung: the width of a head, the dtype of the cache, the device."""

    D: int
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """B sequences of T positions, H heads of D elements, queries at the last Q positions."""

    B: int
    H: int
    Q: int
    T: int
    D: int
    causal: bool = True
    dtype: str = "float32"
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        words = [f"{self.B}x{self.H}x{self.Q}of{self.T}x{self.D}", self.dtype, "" if self.causal else "all"]
        return "-".join(word for word in words if word)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.D, self.dtype, self.device)


def cost(case: Case) -> tuple[float, float]:
    """(operations of both products over visible keys, bytes of q, out, keys and values)."""
    seen = sum(range(case.T - case.Q + 1, case.T + 1)) if case.causal else case.Q * case.T
    word = 4 if case.dtype == "float32" else 2
    heads, row = case.B * case.H, 4 if case.device == "cpu" else word
    return 4.0 * heads * seen * case.D, float(heads * case.D * 2 * (row * case.Q + word * case.T))


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """eps32 * (2 * sqrt(D) * scale * max_t(|q| . |k_t|) + 4 sqrt(T) + 16) * (weights @ |v|).

    An error e of the scores changes each weight by a factor within 1 + 2 e, and sums of T weights round like any
    sum. The constant 16 covers exp, the division and the products. Weights rounded to 16 bits add
    eps16 * (weights @ |v|).
    """
    from tilewright.ops.attention.reference import attention

    q, k, v = (np.abs(inputs[name].astype(np.float64)) for name in "qkv")
    scores = (q @ k.swapaxes(-1, -2)).max(axis=-1, keepdims=True, initial=0) / math.sqrt(case.D)
    spread = attention(inputs["q"], inputs["k"], v, causal=case.causal)
    rounding = EPS16.get(case.dtype, 0.0)
    return (EPS32 * (c * (2 * math.sqrt(case.D) * scores + 4 * math.sqrt(case.T)) + 16) + rounding) * spread
