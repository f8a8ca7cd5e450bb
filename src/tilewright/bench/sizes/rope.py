"""The sizes at which the bench times rope, their random inputs, and their float64 results."""

import dataclasses

import numpy as np

from tilewright.ops.core.arrays import BFLOAT16
from tilewright.ops.core.gpu.rows import shortened, tensors_of
from tilewright.ops.rope.operands import inverse_frequencies
from tilewright.ops.rope.problem import Case, Problem, bound, cost  # noqa: F401 - also for callers

PROBE_ROWS = 1 << 12  # rows that are enough to fill a GPU
THETA = 10000.0


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments: x, positions, frequencies."""
    rows, width = case.shape
    x = rng.standard_normal((rows, 3 * width // 2 + 2 if case.layout == "strided" else width), dtype=np.float32)
    x = shortened(x, case.dtype)[:, :width]
    if case.dtype == "bfloat16" and case.device == "cpu":
        x = x.astype(BFLOAT16) if case.layout == "C" else _apart(x)
    positions = rng.integers(0, case.length, rows)
    return {"x": x, "positions": positions, "frequencies": inverse_frequencies(2 * case.pairs, THETA)}


def _apart(x: np.ndarray) -> np.ndarray:
    """bfloat16 rows that are not adjacent in memory."""
    wide = np.zeros((len(x), x.shape[1] + 3), BFLOAT16)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]


def rows(case: Case) -> int:
    """The number of rows."""
    return case.rows


def with_rows(case: Case, count: int) -> Case:
    """The same heads with another number of rows."""
    return dataclasses.replace(case, rows=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung."""
    from tilewright.ops.rope import prepare, rope

    if case.device != "cpu":
        return bind_tensors(case, inputs)
    rotation = prepare(inputs["frequencies"], length=case.length)
    return lambda out=None: rope(inputs["x"], inputs["positions"], rotation, heads=case.heads, out=out)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.rope.reference import rope

    return rope(**inputs, heads=case.heads)


def sizes() -> list[Case]:
    """Queries and keys of Pythia-160M: the positions of a prefill and of a decode step. Also of a head that is rotated
    whole."""
    return [
        Case(1024, 24, 8, 48, label="pythia-160m"),
        Case(64, 24, 8, 48, label="pythia-160m decode"),
        Case(1024, 24, 8, 48, dtype="bfloat16", label="pythia-160m"),
        Case(1024, 24, 32, label="whole heads"),
    ]


def device_sizes() -> list[Case]:
    """Sizes on a GPU: queries and keys of Pythia-160M, and of heads that are rotated whole, in two classes."""
    found = [
        Case(32768, 24, 8, 48, label="pythia-160m"),
        Case(32768, 24, 8, 48, dtype="bfloat16", label="pythia-160m"),
        Case(32768, 24, 32, dtype="bfloat16", label="whole heads"),
    ]
    return [dataclasses.replace(case, device="cuda") for case in found]


def bind_tensors(case, inputs: dict, device: str = "cuda"):
    """call(out=None) on tensors made of a case's NumPy inputs; for the bench and the tests."""
    from tilewright.ops.rope import prepare, rope

    frequencies = inputs["frequencies"]
    if not isinstance(frequencies, np.ndarray):
        frequencies = frequencies.cpu().numpy()
    values = tensors_of(case, {name: inputs[name] for name in ("x", "positions")}, device, "x")
    x, positions = values["x"], values["positions"]
    rotation = prepare(frequencies, length=case.length, like=x)
    return lambda out=None: rope(x, positions, rotation, heads=case.heads, out=out)
