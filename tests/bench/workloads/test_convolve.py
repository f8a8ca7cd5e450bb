"""The bench of volumes at small sizes: checked, beside its peers, and without one."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest

from tilewright.bench import climb, measure
from tilewright.bench.clocks import cpu as clock
from tilewright.bench.peers import conv3d as peers
from tilewright.bench.results import Row
from tilewright.bench.sizes import conv3d as spec
from tilewright.bench.workloads import convolve
from tilewright.errors import InternalError, UsageError

CASES = [
    spec.Case(8, 9, 20, 3, 3, 3, label="direct"),
    spec.Case(8, 9, 20, 5, 5, 5, kind="gaussian", label="factors"),
    spec.Case(8, 9, 20, 3, 3, 3, O=2, C=3, label="channels"),
    spec.Case(8, 9, 20, 3, 3, 3, mode="wrap", label="wrap"),
]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(clock, "empty_caches", lambda: None)
    monkeypatch.setattr(clock, "SPIN_S", 0.0)


BOTH = ("scipy", "torch")  # the peers of tests that are not long: Halide compiles for seconds


def rows_of(*given, against=BOTH, **options) -> list[Row]:
    return [row for rows in convolve.bench(*given, against=against, **options) for row in rows]


def test_a_row_for_each_that_can():
    said: list[str] = []
    rows = rows_of(CASES, say=said.append)
    found = [(row.label, row.rung) for row in rows]
    ours = [(case.label, "tilewright") for case in CASES]
    scipy = [(case.label, "scipy") for case in CASES if not case.C]
    torch = [(case.label, "torch") for case in CASES if case.mode == "constant"]
    assert sorted(found) == sorted(ours + scipy + torch)
    assert all(row.peer_ratio > 0 for row in rows)
    assert [line.split(",")[0] for line in said] == [f"{c.label}: {r}" for c, r in zip(CASES, RUNGS, strict=True)]
    assert len(convolve.lines(rows)) == len(rows)


def test_the_limit_is_the_larger_of_two_that_took_turns(monkeypatch):
    """Scripted seconds: multiply-adds of 1, a copy of twice the bytes in 3 (so 1.5), and two rounds of ours and a
    peer's."""
    seconds = {"tilewright": (3.0, 6.0), "scipy": (30.0, 60.0), "multiply-adds": (1.0, 2.0), "copy": (3.0, 6.0)}
    scripted = {name: measure.Timing(rounds) for name, rounds in seconds.items()}
    monkeypatch.setattr(convolve, "interleave", lambda calls, clock, **_: {name: scripted[name] for name in calls})
    monkeypatch.setattr(convolve, "limits_beside", lambda *_: {"multiply-adds": (None, 1.0), "copy": (None, 0.5)})
    ours, peer = rows_of(CASES[:1], against=("scipy",), say=lambda text: None)
    assert (ours.roof_share, peer.roof_share) == pytest.approx((0.5, 0.05))
    flops, nbytes = spec.cost(CASES[0])
    assert ours.roof_gflops == pytest.approx(flops / 1.5 / 1e9)
    assert ours.roof_gbytes_s == pytest.approx(nbytes / 2.25 / 1e9)


RUNGS = ("cpu.rows", "cpu.separable", "cpu.rows", "cpu.rows")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_peers_compute_the_same(case, rng):
    """A peer that computed something else would be no measure."""
    inputs = spec.make(case, rng)
    expected = spec.reference(case, inputs)
    if torch := peers.torch_call(case, inputs):
        assert np.allclose(torch()[0].numpy().reshape(expected.shape), expected, atol=1e-4)
    if scipy := peers.scipy_call(case, inputs):
        assert np.allclose(scipy(), expected, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_the_ladder_has_every_peer(case, rng):
    names = [name for name, module in (("scipy", "scipy"), ("Halide", "halide")) if find_spec(module) and not case.C]
    names += ["PyTorch"] if case.mode == "constant" else []
    names += ["OpenCV"] if find_spec("cv2") and case.kind == "gaussian" else []
    assert set(peers.cpu(case, spec.make(case, rng))) == set(names)


@pytest.mark.long
def test_all_peers_in_one_process():
    """Their threads live side by side. The fastest peer is named."""
    pytest.importorskip("halide")
    pytest.importorskip("cv2")
    said: list[str] = []
    rows = rows_of([spec.Case(40, 33, 70, 5, 5, 5, kind="gaussian")], against=None, say=said.append)
    assert [row.rung for row in rows] == ["tilewright", "scipy", "torch", "halide", "opencv"]
    assert rows[0].peer == min(rows[1:], key=lambda row: row.median_s).rung


def test_a_wrong_peer_is_not_reported(monkeypatch):
    monkeypatch.setitem(convolve.CALLS, "scipy", lambda case, inputs: lambda: np.zeros((8, 9, 20), np.float32))
    with pytest.raises(InternalError, match=r"scipy is off by .* times its bound on 8x9x20"):
        rows_of(CASES[:1], say=lambda text: None)


def test_without_a_peer(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    said: list[str] = []
    rows = rows_of(CASES[:1], against=("torch",), say=said.append)
    assert [(row.rung, row.peer) for row in rows] == [("tilewright", None)]
    assert said[-1] == "no torch: torch is not installed"


@pytest.mark.parametrize(("short", "times"), [(0.0, 1), (60.0, 3)])
def test_short_calls_take_more_turns(short, times, monkeypatch):
    monkeypatch.setattr(convolve, "SHORT_S", short)
    rows = rows_of(CASES[:1], against=(), say=lambda text: None)
    assert [row.runs for row in rows] == [times * measure.RUNS]


def test_an_unknown_peer_is_named():
    with pytest.raises(UsageError, match="no peer is called itk; the peers are scipy, torch, halide, opencv"):
        rows_of(CASES, against=("itk",), say=lambda text: None)


def test_wrong_volumes_are_not_reported(monkeypatch):
    monkeypatch.setattr(spec, "reference", lambda case, inputs: np.zeros((8, 9, 20)))
    with pytest.raises(InternalError, match=r"conv3d\.cpu\.rows is off by .* nothing is reported"):
        rows_of(CASES[:1], say=lambda text: None)


def test_rows_of_a_gpu_name_their_peers(monkeypatch):
    case = spec.Case(8, 9, 20, 3, 3, 3, label="large", device="cuda")

    def climbed(op, case, *, count, only):
        common = {"op": "conv3d", "size": case.name, "dtype": "float32", "threads": 0, "rows": 8, "runs": 3}
        for name, seconds, check in ((only, 1e-3, "passed 0.1"), ("cuDNN", 8e-3, "peer"), ("CuPy", 4e-3, "peer")):
            times = dict.fromkeys(("median_s", "low_s", "high_s"), seconds)
            yield Row(rung=name, check=check, gflops=1.0, gbytes_s=1.0, label=case.label, **common, **times)

    monkeypatch.setattr(climb, "climb", climbed)
    monkeypatch.setattr(convolve.ladder, "choose", lambda problem: convolve.ladder.rungs["simt.march"])
    said: list[str] = []
    rows = rows_of([case], device="cuda", against=None, say=said.append)
    assert [(row.op, row.rung, row.peer_ratio) for row in rows[1:]] == [
        ("volumes", "cuDNN", 8.0),
        ("volumes", "CuPy", 4.0),
    ]
    assert rows[0].rung == "tilewright" and said == ["large: simt.march, passed 0.1"]
    assert [row.rung for row in rows_of([case], device="cuda", against=("cupy",), say=said.append)] == [
        "tilewright",
        "CuPy",
    ]
    assert "GPU" in convolve.lines(rows)[0]
    with pytest.raises(UsageError, match="no peer is called scipy"):
        rows_of([case], device="cuda", against=("scipy",), say=said.append)
