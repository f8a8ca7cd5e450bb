"""attention's problems, costs, tolerances and sizes."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from tilewright.ops.core.arrays import BFLOAT16, rounded

EPS32 = float(np.finfo(np.float32).eps)
DTYPES = ("float32", "bfloat16")
DEVICE_DTYPES = (*DTYPES, "float16")  # accuracy classes on a GPU
EPS16 = {"bfloat16": 2.0**-7, "float16": 2.0**-10}  # of shares, where they are rounded


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at: the width of a head, how keys are kept, the device."""

    D: int
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """B sequences of T positions, H heads of D numbers, queries at the last Q positions."""

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


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `attention`, of a size that makes some keys matter more than others.

    What is in 16 bits is such that rounding changes nothing.
    """
    B, H, Q, T, D = case.B, case.H, case.Q, case.T, case.D
    values = {name: rng.standard_normal((B, H, n, D), dtype=np.float32) for name, n in (("q", Q), ("k", T), ("v", T))}
    if case.dtype == "bfloat16":
        values = {name: rounded(x) for name, x in values.items()}
    elif case.dtype == "float16":
        values = {name: x.astype(np.float16).astype(np.float32) for name, x in values.items()}
    return {**values, "causal": case.causal}


def rows(case: Case) -> int:
    """How many queries there are."""
    return case.B * case.Q


def with_rows(case: Case, count: int) -> Case:
    """The same problem with fewer sequences."""
    return dataclasses.replace(case, B=max(1, count // max(case.Q, 1)))


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung; the keys and values are in the cache before."""
    if case.device != "cpu":
        from tilewright.ops.attention.device import bind as bind_there

        return bind_there(case, inputs)
    from tilewright.ops.attention import Cache, append, attend, span

    B, H, Q, T, D = case.B, case.H, case.Q, case.T, case.D
    kind = np.float32 if case.dtype == "float32" else BFLOAT16
    q, k, v = (inputs[name].swapaxes(1, 2).astype(kind, order="C").reshape(-1, H * D) for name in "qkv")
    cache = Cache.empty(B, H, T, D, case.dtype)
    append(k, v, cache, [span(b, 0, T, b * T) for b in range(B)])
    spans = np.array([span(b, T - Q, Q, b * Q) for b in range(B)], np.int64)

    def call(out=None):
        found = attend(q, cache, spans, causal=case.causal).reshape(B, Q, H, D).swapaxes(1, 2)
        if out is None:
            return found
        out[...] = found
        return out

    return call


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.attention.reference import attention

    return attention(**inputs)


def cost(case: Case) -> tuple[float, float]:
    """(operations of both products over visible keys, bytes of q, out, keys and values)."""
    seen = sum(range(case.T - case.Q + 1, case.T + 1)) if case.causal else case.Q * case.T
    word = 4 if case.dtype == "float32" else 2
    heads, row = case.B * case.H, 4 if case.device == "cpu" else word
    return 4.0 * heads * seen * case.D, float(heads * case.D * 2 * (row * case.Q + word * case.T))


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """An error e of the scores changes each share by a factor within 1 + 2 e, and sums of T shares round like any sum.

    So: eps32 * (2 * sqrt(D) * scale * max_t(|q| . |k_t|) + 4 sqrt(T) + 16) * (shares @ |v|), the last part standing for
    exp, the division and the products. Shares rounded to the class's 16 bits: eps16 * (shares @ |v|) more.
    """
    from tilewright.ops.attention.reference import attention

    q, k, v = (np.abs(inputs[name].astype(np.float64)) for name in "qkv")
    scores = (q @ k.swapaxes(-1, -2)).max(axis=-1, keepdims=True, initial=0) / math.sqrt(case.D)
    spread = attention(inputs["q"], inputs["k"], v, causal=case.causal)
    shares = EPS16.get(case.dtype, 0.0)
    return (EPS32 * (c * (2 * math.sqrt(case.D) * scores + 4 * math.sqrt(case.T)) + 16) + shares) * spread


def cases() -> list[Case]:
    """One position, a panel and its neighbours, decode and prefill, odd widths, everything visible."""
    sizes = [
        (1, 1, 1, 1, 1), (1, 2, 1, 7, 16), (2, 3, 5, 5, 8), (1, 2, 16, 16, 64), (3, 2, 1, 33, 64), (2, 2, 9, 31, 20),
        (1, 2, 8, 32, 33), (2, 1, 3, 65, 80), (1, 1, 130, 130, 64), (1, 1, 2, 700, 48), (0, 2, 3, 4, 8),
    ]  # fmt: skip
    found = [Case(*size) for size in sizes] + [Case(2, 2, 5, 40, 32, causal=False)]
    return found + [dataclasses.replace(case, dtype="bfloat16") for case in found]


def sizes() -> list[Case]:
    """GPT-2's: the course's prefill and decode, a long prompt, long decoding."""
    return [
        Case(64, 12, 16, 16, 64, label="gpt2 prefill"),
        Case(256, 12, 1, 20, 64, label="gpt2 decode"),
        Case(64, 12, 1, 128, 64, label="gpt2 decode, longer"),
        Case(1, 12, 1024, 1024, 64, label="gpt2 full context"),
        Case(1, 12, 1, 1024, 64, label="gpt2 decode, full context"),
    ]


def device_sizes() -> list[Case]:
    """What the bench times on a GPU: a share of the course's prefill and decode, longer decoding, long prompts."""
    shapes = [(1600, 12, 16, 16, "gpt2 prefill"), (1600, 12, 1, 20, "gpt2 decode")]
    longer = [(512, 12, 1, 150, "gpt2 decode, longer"), (8, 12, 1024, 1024, "gpt2 full context")]
    found = [(shape, "float32") for shape in shapes] + [(shape, "bfloat16") for shape in shapes + longer]
    return [Case(B, H, Q, T, 64, dtype=dtype, label=label, device="cuda") for (B, H, Q, T, label), dtype in found]
