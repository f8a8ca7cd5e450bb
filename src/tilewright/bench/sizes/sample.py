"""The sizes at which the bench times sample, their random inputs, and their float64 results."""

import dataclasses

import numpy as np

from tilewright.ops.sample.operands import Edits, Rules, rules
from tilewright.ops.sample.problem import Case, Problem, bound, cost  # noqa: F401 - also for callers


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random logits, and the three arrays of their rules."""
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
    """Shifts of a quarter of the tokens, before and after a penalty. An odd row may choose only from half of the
    tokens."""
    before, after = (
        dict(zip(rng.integers(0, V, V // 4).tolist(), rng.normal(0, 9, V // 4), strict=True)) for _ in "ab"
    )
    return Edits(before, after, rng.integers(0, V, V // 2 + 1) if row % 2 else ())


def rows(case: Case) -> int:
    """The number of rows of the batch."""
    return case.M


def with_rows(case: Case, count: int) -> Case:
    """The same problem with another number of rows."""
    return dataclasses.replace(case, M=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung. It returns the tokens as float32."""
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
    """The tokens, from a full sort."""
    from tilewright.ops.sample.reference import sample

    return sample(**inputs)[0]


def sizes() -> list[Case]:
    """Sizes: a step of the poet and of GPT-2, plain, with top_k, and with top_p; logits of a trained model and random
    ones."""
    return _sizes((512, 4000, "poet"), (64, 50257, "gpt2"))


def device_sizes() -> list[Case]:
    """The same sizes with the rows of a lane on a GPU."""
    return [dataclasses.replace(case, device="cuda") for case in _sizes((2560, 4000, "poet"), (2560, 50257, "gpt2"))]


def _sizes(*models: tuple[int, int, str]) -> list[Case]:
    found = []
    for M, V, name in models:
        found += [Case(M, V, label=f"{name}, {M} rows"), Case(M, V, 0.3, label=f"{name}, {M} rows, random weights")]
        found += [Case(M, V, limits=(50, 1.0, 0.0), label=f"{name}, {M} rows, top_k 50")]
        found += [Case(M, V, limits=(0, 0.9, 0.0), label=f"{name}, {M} rows, top_p 0.9")]
    return found


def bind_tensors(case, inputs: dict, device: str = "cuda"):
    """call(out=None) on a tensor made of a case's NumPy input, for the bench and the tests. It returns float32 tokens.
    As in generation, the rules are on the device before the call, and nothing waits for the tokens."""
    import torch

    from tilewright.ops.sample import draw
    from tilewright.ops.sample.tensors import edited

    given = Rules(**{name: inputs[name] for name in Rules._fields})
    logits, floats, integers = (torch.from_numpy(part).to(device) for part in (inputs["logits"], *given[:2]))
    scores, tokens = edited(logits, given), torch.empty(len(logits), dtype=torch.int64, device=device)

    def call(out=None):
        draw(logits, floats, integers, tokens, scores)
        return tokens.float() if out is None else out.copy_(tokens)

    return call
