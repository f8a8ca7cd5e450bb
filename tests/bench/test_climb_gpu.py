"""What the bench does with a rung before it times it, for all that it times on a GPU: shrunk, and run as Python."""

from dataclasses import fields, replace
from importlib import import_module

import pytest

from gpu import ON_GPU, PLACE, round_fma_once, widen_bfloat16
from tilewright.bench import climb
from tilewright.bench.measure import Timing
from tilewright.ops.core.ladder import operations

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("simulated_gpu")


MOST = 3  # of every extent


def shrunk(value):
    """A field of a case, its extents MOST at most."""
    if isinstance(value, tuple):
        return tuple(map(shrunk, value))
    return min(value, MOST) if type(value) is int else value


def timed():
    """(operation, one of the cases that are timed on a GPU, shrunk), each once."""
    for op in operations():
        every = getattr(import_module(f"tilewright.bench.sizes.{op}"), "device_sizes", list)()
        small = [replace(case, **{f.name: shrunk(getattr(case, f.name)) for f in fields(case)}) for case in every]
        alike = ("float16", "tf32") if any(case.dtype == "bfloat16" for case in small) else ()
        for case in {case.name: case for case in small}.values():
            marks = [pytest.mark.long] if case.dtype in alike else []  # they have bfloat16's kernels
            yield pytest.param(op, case, id=f"{op}-{case.name}", marks=marks)


@pytest.fixture
def as_python(monkeypatch):
    """No clock, and no GPU to wait for; elsewhere than on a GPU."""
    monkeypatch.setattr(climb.GpuSubject, "device", PLACE)
    if ON_GPU:
        return
    widen_bfloat16(monkeypatch)
    round_fma_once(monkeypatch)
    monkeypatch.setattr(climb, "interleave", lambda calls, clock, runs: dict.fromkeys(calls, Timing((1e-6,))))
    monkeypatch.setattr(climb.GpuSubject, "clock", lambda self, settle: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.mark.usefixtures("as_python")
@pytest.mark.parametrize(("op", "case"), list(timed()))
def test_a_rung_is_checked_and_timed_writing_what_its_peer_writes(op, case):
    ladder, spec = import_module(f"tilewright.ops.{op}").ladder, import_module(f"tilewright.bench.sizes.{op}")
    subject = climb.GpuSubject(ladder, spec, case)
    rungs = [rung for rung in ladder.rungs.values() if not rung.refuses(case.problem)]
    if not rungs:
        pytest.skip("; ".join(ladder.rungs[ladder.prefer[0]].refuses(case.problem)))
    quickest = max(rungs, key=lambda rung: rung.name.startswith("tile."))  # in the interpreter
    found = climb.candidate(quickest, subject)
    result, whole = found.call(), subject.forced(quickest.name)()
    assert found.error <= 1
    assert ((result - whole).abs() <= whole.abs() / 128).all()  # the interpreter truncates to bfloat16
    if case.dtype.endswith("16"):
        assert result.dtype == getattr(torch, case.dtype)
    for call in subject.peers().values():
        call()
