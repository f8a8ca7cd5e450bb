"""sample's problems, costs, tolerances and sizes."""

import dataclasses
from dataclasses import dataclass

import numpy as np

from tilewright.ops.sample.operands import Edits, Rules, rules

SURE = 1e-12  # of the sum of all weights: more than float64 sums of a vocabulary in any two orders differ by


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at."""

    V: int
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """M rows of V logits; spread: their standard deviation. kind: "" or "ties", logits on a grid, or "one", a row with
    one logit far above the others. edits: a repetition penalty and banned tokens. shifts: what is added to logits, and
    in every other row the only tokens that are allowed."""

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


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random logits, and the three parts of their rules."""
    logits = rng.normal(0, case.spread, (case.M, case.V)).astype(np.float32)
    if case.kind == "ties":
        logits = np.round(logits)
    elif case.kind == "one":
        logits[:, case.V // 2] += 1000
    u, penalty, seen, banned = rng.random(case.M), np.ones(case.M), [], []
    if case.edits:
        seen, banned = ([rng.integers(0, case.V, case.V // 4) for _ in range(case.M)] for _ in range(2))
        penalty = rng.uniform(0.5, 2, case.M)
    more = [_edits(case.V, i, rng) for i in range(case.M)] if case.shifts else ()
    given = rules(u, case.limits, temperature=case.temperature, penalty=penalty, seen=seen, banned=banned, edits=more)
    return {"logits": logits, **given._asdict()}


def _edits(V: int, row: int, rng: np.random.Generator) -> Edits:
    """Shifts of a quarter of the tokens, before and after a penalty, and for odd rows half of them as the only ones."""
    before, after = (
        dict(zip(rng.integers(0, V, V // 4).tolist(), rng.normal(0, 9, V // 4), strict=True)) for _ in "ab"
    )
    return Edits(before, after, rng.integers(0, V, V // 2 + 1) if row % 2 else ())


def rows(case: Case) -> int:
    """How many rows of the batch a case has."""
    return case.M


def with_rows(case: Case, count: int) -> Case:
    """The same problem with another number of rows."""
    return dataclasses.replace(case, M=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung; it gives the tokens as float32."""
    from tilewright.ops.sample import sample

    given = Rules(**{name: inputs[name] for name in Rules._fields})

    def call(out=None):
        tokens = sample(inputs["logits"], given).tokens
        if out is None:
            return tokens.astype(np.float32)
        out[...] = tokens
        return out

    return call


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The tokens of a full sort."""
    from tilewright.ops.sample.reference import sample

    return sample(**inputs)[0]


def cost(case: Case) -> tuple[float, float]:
    """(an exp and two sums a logit; bytes of the logits)."""
    return 20.0 * case.M * case.V, 4.0 * case.M * case.V


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """0: the very token; any other where rounding may decide."""
    from tilewright.ops.sample.reference import sample

    return np.where(sample(**inputs)[1] <= SURE * c, float(case.V), 0.0)


def cases() -> list[Case]:
    """One of everything: vectors and their neighbours, each limit, alone and together, ties, edits, extremes."""
    found = [
        Case(M, V) for M, V in ((0, 5), (1, 1), (3, 2), (5, 15), (4, 16), (3, 17), (9, 257), (3, 4000), (40, 3000))
    ]
    found += [Case(2, 50257), Case(2, 50257, 0.02), Case(2, 50257, limits=(50, 0.9, 0.01))]
    for limits in ((1, 1.0, 0.0), (7, 1.0, 0.0), (700, 1.0, 0.0), (0, 0.9, 0.0), (0, 1e-9, 0.0), (0, 1.0, 0.05)):
        found += [Case(6, 1000, limits=limits, kind=kind) for kind in ("", "ties", "one")]
    found += [Case(6, 1000, limits=(300, 0.8, 0.02)), Case(6, 1000, 0.1, limits=(999, 1 - 1e-16, 1e-3))]
    found += [Case(8, 300, temperature=t) for t in (0.0, 5e-324, 1e-3, 0.7, 2.0)]
    found += [Case(30, 200, shifts=True), Case(30, 999, edits=True, shifts=True, limits=(20, 0.9, 0.0))]
    found += [Case(30, 200, edits=True), Case(30, 999, edits=True, limits=(20, 0.9, 0.0)), Case(6, 500, 300.0)]
    return found


def sizes() -> list[Case]:
    """A step of the poet and of GPT-2: plain, with top_k, with top_p; logits of a trained model and of random ones."""
    return _sizes((512, 4000, "poet"), (64, 50257, "gpt2"))


def device_sizes() -> list[Case]:
    """The same with the rows of a lane on a GPU."""
    return [dataclasses.replace(case, device="cuda") for case in _sizes((2560, 4000, "poet"), (2560, 50257, "gpt2"))]


def _sizes(*models: tuple[int, int, str]) -> list[Case]:
    found = []
    for M, V, name in models:
        found += [Case(M, V, label=f"{name}, {M} rows"), Case(M, V, 0.3, label=f"{name}, {M} rows, random weights")]
        found += [Case(M, V, limits=(50, 1.0, 0.0), label=f"{name}, {M} rows, top_k 50")]
        found += [Case(M, V, limits=(0, 0.9, 0.0), label=f"{name}, {M} rows, top_p 0.9")]
    return found
