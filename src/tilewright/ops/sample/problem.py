"""sample's problem: the properties on which the choice of a rung depends, its cost and error bound."""

from dataclasses import dataclass

import numpy as np

SURE = 1e-12  # a share of the sum of all weights: more than the difference of float64 sums in any two orders


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may depend on: the size of the vocabulary, the dtype and the device."""

    V: int
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """M rows of V logits; spread: their standard deviation. kind: "", or "ties", logits on a grid, or "one", one
    logit far above the others. edits: a repetition penalty and banned tokens. shifts: shifts of logits, and in every
    other row a list of allowed tokens."""

    M: int
    V: int
    spread: float = 3.0
    temperature: float = 1.0
    limits: tuple[int, float, float] = (0, 1.0, 0.0)  # top_k, top_p, min_p
    kind: str = ""
    edits: bool = False
    shifts: bool = False
    label: str = ""
    dtype: str = "float32"
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        k, p, least = self.limits
        parts = [f"{self.M}x{self.V}", f"spread{self.spread:g}", self.kind, "edits" if self.edits else ""]
        parts += ["shifts"] if self.shifts else []
        parts += [f"temperature{self.temperature:g}" if self.temperature != 1 else "", f"top{k}" if k else ""]
        return "-".join(w for w in [*parts, f"p{p:g}" if p < 1 else "", f"min{least:g}" if least else ""] if w)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        return Problem(self.V, device=self.device)


def cost(case: Case) -> tuple[float, float]:
    """(operations: an exp and two sums per logit; bytes of the logits)."""
    return 20.0 * case.M * case.V, 4.0 * case.M * case.V


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """0 for exactly this token; V, which allows any other, where rounding may decide."""
    from tilewright.ops.sample.reference import sample

    return np.where(sample(**inputs)[1] <= SURE * c, float(case.V), 0.0)
