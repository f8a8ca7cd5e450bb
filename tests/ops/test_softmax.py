"""What softmax promises beside its numbers: masks, NaN, rows that know nothing of each other."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest

from compare import Guarded, compare
from tilewright.errors import UsageError
from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import threads
from tilewright.ops.core.rows import ALONE
from tilewright.ops.softmax import ladder, softmax
from tilewright.ops.softmax.reference import softmax as truth

RUNGS = [name for name in ladder.rungs if name.startswith("cpu.")]


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("C", [1, 5, 16, 77, 300])
def test_masked_numbers_become_nothing(rung, C, rng):
    """-inf is exactly 0, wherever it stands and however many there are; the others are as if it were not there."""
    x = rng.standard_normal(C, dtype=np.float32)
    for masked in (slice(0, C - 1), slice(1, C), slice(0, C, 2)):
        row = x.copy()
        row[masked] = -np.inf
        if np.isneginf(row).all():
            continue
        with using(softmax=rung):
            y = softmax(row)
        kept = ~np.isneginf(row)
        assert (y[~kept] == 0).all()
        e = np.exp(row[kept].astype(np.float64))
        compare(y[kept], e / e.sum(), 1e-6 * e / e.sum() + 1e-40)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("C", [3, 16, 77, 300])
def test_rows_without_an_answer_become_nan(rung, C):
    """Nothing but -inf, a NaN, an infinity: NaN throughout; the rows beside them stay."""
    x = np.zeros((5, C), np.float32)
    x[0] = -np.inf
    x[1, C // 2] = np.nan
    x[2, C - 1] = np.inf
    x[3, 0] = np.nan
    with using(softmax=rung):
        y = softmax(x)
    assert np.isnan(y[:4]).all()
    compare(y[4], np.full(C, 1 / C), 1e-7)


@pytest.mark.parametrize("rung", RUNGS)
def test_numbers_at_the_ends_of_float32(rung):
    most = np.finfo(np.float32).max
    x = np.float32([[most, most, -most, 0], [-most, -most, -np.inf, -np.inf], [1e-45, 0, -1e-45, 0]])
    with using(softmax=rung):
        compare(softmax(x), np.array([[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0.25] * 4]), 0)


@pytest.mark.parametrize("module", ["vectors"])
@pytest.mark.parametrize("lanes", [4, pytest.param(8, marks=pytest.mark.long)])
def test_narrower_vectors(module, lanes, rng, monkeypatch):
    """What a machine without AVX-512 runs."""
    file = importlib.import_module(f"tilewright.ops.softmax.cpu.{module}")
    monkeypatch.setattr(file, "cpu", lambda: SimpleNamespace(lanes=lanes))
    for C in (1, lanes - 1, lanes, 4 * lanes + 3, 100):
        x = rng.standard_normal((3, C), dtype=np.float32)
        x[0, : C // 2] = -np.inf
        out = Guarded(x.shape)
        file.normalise(x, out.array)
        out.check()
        compare(np.ascontiguousarray(out.array), truth(x), 1e-6)


def test_a_row_knows_nothing_of_the_others(rng):
    """The same bits alone, among others, behind a poisoned row, in place, on one thread and two."""
    x = rng.standard_normal((2 * ALONE // 100, 100), dtype=np.float32)
    with threads(2):
        whole = softmax(x)
    with threads(1):
        assert softmax(x).tobytes() == whole.tobytes()
    poisoned = x.copy()
    poisoned[::2] = np.nan
    assert softmax(poisoned)[1::2].tobytes() == whole[1::2].tobytes()
    for i in (0, 1, len(x) - 1):
        assert softmax(x[i]).tobytes() == whole[i].tobytes()
    place = x.copy()
    assert softmax(place, out=place) is place
    assert place.tobytes() == whole.tobytes()
    shifted = np.concatenate([x, x[:1]])
    softmax(shifted[:-1], out=shifted[1:])
    assert shifted[1:].tobytes() == whole.tobytes()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)])
def test_nothing_gives_nothing(shape):
    assert softmax(np.empty(shape, np.float32)).shape == shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: softmax(x[0, 0]), "x is a single number"),
        (lambda x: softmax(x.astype(np.int32)), "x is int32"),
        (lambda x: softmax(x, out=np.empty((3, 2), np.float32)), r"out is float32 \(3, 2\)"),
        (lambda x: softmax(x, out=np.empty((2, 3))), "out is float64"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(UsageError, match=message):
        call(np.zeros((2, 3), np.float32))
