"""The bench of volumes at small sizes: checked, beside its peers, and without one."""

import sys

import numpy as np
import pytest

from tilewright.bench import conv3d, measure
from tilewright.bench.peers import peers
from tilewright.errors import InternalError, UsageError
from tilewright.ops.conv3d import spec

CASES = [
    spec.Case(8, 9, 20, 3, 3, 3, label="direct"),
    spec.Case(8, 9, 20, 5, 5, 5, kind="gaussian", label="factors"),
    spec.Case(8, 9, 20, 3, 3, 3, O=2, C=3, label="channels"),
    spec.Case(8, 9, 20, 3, 3, 3, mode="wrap", label="wrap"),
]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(measure, "empty_caches", lambda: None)


def test_a_row_for_each_that_can():
    said: list[str] = []
    rows = conv3d.bench(CASES, say=said.append)
    found = [(row.label, row.rung) for row in rows]
    ours = [(case.label, "tilewright") for case in CASES]
    scipy = [(case.label, "scipy") for case in CASES if not case.C]
    torch = [(case.label, "torch") for case in CASES if case.mode == "constant"]
    assert sorted(found) == sorted(ours + scipy + torch)
    assert all(row.peer_ratio > 0 for row in rows)
    assert [line.split(",")[0] for line in said] == [f"{c.label}: {r}" for c, r in zip(CASES, RUNGS, strict=True)]
    assert len(conv3d.lines(rows)) == len(rows)


RUNGS = ("cpu.rows", "cpu.separable", "cpu.rows", "cpu.rows")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_peers_compute_the_same(case, rng):
    """A peer that computed something else would be no measure."""
    inputs = spec.make(case, rng)
    expected = spec.reference(case, inputs)
    if torch := conv3d.torch_call(case, inputs):
        assert np.allclose(torch()[0].numpy().reshape(expected.shape), expected, atol=1e-4)
    if scipy := conv3d.scipy_call(case, inputs):
        assert np.allclose(scipy(), expected, atol=1e-4)
    assert set(peers("conv3d", case, inputs)) == {n for n, c in (("PyTorch", torch), ("scipy", scipy)) if c}


def test_without_a_peer(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    said: list[str] = []
    rows = conv3d.bench(CASES[:1], against=("torch",), say=said.append)
    assert [(row.rung, row.peer) for row in rows] == [("tilewright", None)]
    assert said[-1] == "no torch: torch is not installed"


def test_an_unknown_peer_is_named():
    with pytest.raises(UsageError, match="no peer is called itk; there are scipy, torch"):
        conv3d.bench(CASES, against=("itk",), say=lambda text: None)


def test_wrong_volumes_are_not_reported(monkeypatch):
    monkeypatch.setattr(spec, "reference", lambda case, inputs: np.zeros((8, 9, 20)))
    with pytest.raises(InternalError, match=r"conv3d\.cpu\.rows is off by .* nothing is reported"):
        conv3d.bench(CASES[:1], say=lambda text: None)
