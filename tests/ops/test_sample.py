"""Tokens against a full sort over rows of every kind, company, threads, and what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.errors import UsageError
from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import threads
from tilewright.ops.sample import Edits, ladder, rules, sample
from tilewright.ops.sample.operands import INTEGER
from tilewright.ops.sample.reference import sample as reference

SURE = 1e-12  # of the sum of all weights
SIZES = (1, 2, 15, 16, 17, 64, 257, 4000, 50257)
FEW = list(zip(SIZES, (60, 100, 300, 300, 300, 300, 300, 200, 24), strict=True))  # rows of each
MANY = list(zip(SIZES, (2000, 4000, 16000, 18000, 22000, 16000, 16000, 7000, 600), strict=True))
TEMPERATURES = (5e-324, 1e-9, 0.05, 0.3, 1.0, 1.0, 1.0, 2.0)
TOP_PS, MIN_PS = (1.0, 1.0, 1.0, 0.9, 0.3, 1e-9, 1 - 1e-16), (0.0, 0.0, 0.0, 0.02, 0.9, 1.0)
US = (2.0**-53, 1 - 2.0**-53)
ON_CPU = [name for name in ladder.rungs if name.startswith("cpu.")]
PIECES = 4  # of the long test, by rows


def some_rows(rng, n: int, V: int) -> np.ndarray:
    """float32 (n, V): peaked, flat, far and near ones, ties, levels, in order, one-hot, and some that are bad."""
    x = rng.normal(0, 1, (n, V)) * rng.choice([0.001, 0.02, 0.3, 3, 3, 10, 300, 1e30], (n, 1)) + rng.choice(
        [0, -90], (n, 1)
    )
    kinds = rng.integers(0, 14, n)
    x[kinds == 0] = np.round(x[kinds == 0])
    x[kinds == 1] = -3
    x[kinds == 2] = np.where(np.arange(V) % 3 == 1, 2.0, -2.0)
    x[kinds == 3] = np.where(rng.random(V) < 0.5, -0.0, 0.0)
    x[kinds == 4] = np.sort(x[kinds == 4], axis=1)
    x[kinds == 5] = -np.sort(x[kinds == 5], axis=1)
    x[kinds == 6] = -np.abs(np.arange(V) - V // 2) / 100
    x[kinds == 7, V // 3] += 1e4
    x = x.astype(np.float32)
    bad = np.flatnonzero(kinds == 8)[::4]
    x[bad, rng.integers(0, V, len(bad))] = rng.choice([np.nan, np.inf, -np.inf], len(bad))
    return x


def some_rules(rng, n: int, V: int):
    """Rules for n rows, each drawn for itself."""
    u = np.where(rng.random(n) < 0.02, rng.choice(US, n), rng.random(n))
    limits = rng.choice([0, 0, 0, 1, 7, 50, 700, V - 1, V, V + 5], n), rng.choice(TOP_PS, n), rng.choice(MIN_PS, n)
    seen, banned = [()] * n, [()] * n
    for i in np.flatnonzero(rng.random(n) < 0.2):
        seen[i], banned[i] = rng.integers(0, V, 9), rng.integers(0, V, rng.integers(0, 9))
    temperature = np.where(rng.random(n) < 0.05, 0, rng.choice(TEMPERATURES, n))
    penalty, edits = rng.uniform(0.5, 2, n), [some_edits(rng, V) for _ in range(n)] if rng.random() < 0.7 else ()
    return rules(u, limits, temperature=temperature, penalty=penalty, seen=seen, banned=banned, edits=edits)


def some_edits(rng, V: int) -> Edits:
    """Mostly none; tokens that are shifted before a penalty, after it, or both; few that are allowed."""
    before, after = (
        dict(zip(rng.integers(0, V, count).tolist(), rng.normal(0, 5, count), strict=True))
        for count in rng.choice([0, 0, 0, 5, 40], 2)
    )
    return Edits(before, after, rng.integers(0, V, rng.choice([0, 0, 0, 1, 7, 90])))


def compared(rng, n: int, V: int) -> int:
    """How many of n rows have another token than the reference has; each must lie within rounding of a boundary."""
    logits, given = some_rows(rng, n, V), some_rules(rng, n, V)
    tokens, (wanted, margins) = sample(logits, given).tokens, reference(logits, *given)
    other = np.flatnonzero(tokens != wanted)
    assert (tokens[other] >= 0).all() and (wanted[other] >= 0).all()
    assert (margins[other] < SURE).all(), (V, other, tokens[other], wanted[other], margins[other])
    return len(other)


@pytest.mark.parametrize(("V", "rows"), FEW)
def test_tokens_are_those_of_a_full_sort(V, rows, rng):
    assert compared(rng, rows, V) <= 1


@pytest.mark.long
@pytest.mark.parametrize(("V", "rows"), MANY)
def test_a_hundred_thousand_rows(V, rows, rng):
    assert sum(compared(rng, rows // PIECES, V) for _ in range(PIECES)) <= 1 + rows // 1000


@pytest.mark.parametrize("rung", ON_CPU)
def test_a_row_is_the_same_in_any_company(rung, rng):
    logits, given = some_rows(rng, 70, 900), some_rules(rng, 70, 900)
    given.integers[:, INTEGER.best] = rng.integers(-1, 8, 70)

    def drawn(rows: np.ndarray) -> list[tuple]:
        ends = given.ends[rows] if len(given.ends) else given.ends
        found = sample(
            logits[rows], type(given)(given.floats[rows], given.integers[rows], given.ids, given.shifts, ends)
        )
        return [
            (token, logarithm.tobytes() if asked >= 0 else b"", row[: max(asked, 0)].tolist())
            for token, logarithm, row, asked in zip(*found, given.integers[rows, INTEGER.best], strict=True)
            if token >= 0
        ]

    with using(sample=rung):
        whole = [drawn(np.array([i])) for i in range(70)]
        for count in (1, 2, 3):
            with threads(count):
                for rows in (np.arange(70), rng.permutation(70), rng.permutation(70)[:9]):
                    assert drawn(rows) == [found for i in rows for found in whole[i]]


def test_rungs_agree_on_the_best_and_on_the_logarithm(rng):
    logits = some_rows(rng, 60, 500)
    given = rules(rng.random(60), best=20)
    found = {}
    for rung in ON_CPU:
        with using(sample=rung):
            found[rung] = sample(logits, given)
    (tokens, logarithms, best), (others, other_logarithms, other_best) = found.values()
    good = tokens >= 0
    assert good.sum() > 50 and np.array_equal(tokens, others) and np.array_equal(best[good], other_best[good])
    assert best.shape == (60, 20) and np.abs(logarithms - other_logarithms)[good].max() <= 1e-13 * 1e32
    near = good & (np.abs(logarithms) < 1e4)
    assert np.abs(logarithms - other_logarithms)[near].max() < 1e-10


@pytest.mark.parametrize("lanes", [4, pytest.param(8, marks=pytest.mark.long)])
def test_shorter_vectors_choose_the_same(lanes, rng, monkeypatch):
    logits, given = some_rows(rng, 200, 333), some_rules(rng, 200, 333)
    wanted, margins = reference(logits, *given)
    monkeypatch.setattr("tilewright.ops.sample.cpu.buckets.cpu", lambda: SimpleNamespace(lanes=lanes))
    tokens = sample(logits, given).tokens
    assert ((tokens == wanted) | (margins < SURE)).all() and (tokens != wanted).sum() <= 1


def test_rows_of_a_wider_array(rng):
    wide = rng.normal(0, 2, (30, 700)).astype(np.float32)
    given = rules(rng.random(30))
    assert np.array_equal(sample(wide[:, 5:300], given).tokens, sample(wide[:, 5:300].copy(), given).tokens)
    assert np.array_equal(sample(wide.T.copy().T, given).tokens, sample(wide, given).tokens)


def test_no_rows_and_one_token():
    assert sample(np.zeros((0, 5), np.float32), rules([])).tokens.shape == (0,)
    found = sample(np.full((2, 1), 7, np.float32), rules([0.1, 0.9], best=3))
    assert found.tokens.tolist() == [0, 0] and found.logarithms.tolist() == [7, 7] and found.best.tolist() == [[0], [0]]


def test_what_does_not_fit_is_refused():
    logits = np.zeros((2, 4), np.float32)
    with pytest.raises(UsageError, match=r"logits has shape \(2, 0\)"):
        sample(logits[:, :0], rules([0.5] * 2))
    with pytest.raises(UsageError, match="2 rows of logits, and rules for 3"):
        sample(logits, rules([0.5] * 3))
    for ids in ([4], [-1]):
        with pytest.raises(UsageError, match="they must be 0 to 3"):
            sample(logits, rules([0.5] * 2, seen=[ids, ()]))
    with pytest.raises(UsageError, match="float64"):
        sample(np.zeros((1, 4)), rules([0.5]))
