"""Halide and OpenCV beside conv3d: every schedule computes what the reference does, with any border."""

import numpy as np
import pytest

from tilewright.bench.clocks import cpu as clock
from tilewright.bench.sizes import conv3d as spec
from tilewright.ops.core.launch import threads

CASES = [
    spec.Case(8, 9, 20, 3, 3, 3),
    spec.Case(5, 40, 33, 3, 4, 5, mode="reflect", origin=(0, 1, -1)),
    spec.Case(3, 40, 40, 9, 9, 9, cval=2.0),
    spec.Case(20, 20, 40, 17, 17, 17, kind="gaussian", mode="reflect"),
    spec.Case(33, 40, 70, 5, 3, 3, kind="gaussian", mode="mirror"),
    spec.Case(5, 7, 9, 5, 3, 7, kind="factors", mode="nearest"),
]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(clock, "empty_caches", lambda: None)


def checked(case, inputs, calls):
    exact = spec.reference(case, inputs)
    bound = spec.bound(case, inputs, exact, 4.0)
    for call in calls:
        assert np.all(np.abs(call() - exact) <= bound)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_schedule_of_halide(case, rng):
    pytest.importorskip("halide")
    from tilewright.bench.peers.halide import _candidates

    inputs = spec.make(case, rng)
    checked(case, inputs, _candidates(case, inputs))


@pytest.mark.long
def test_halides_threads_are_ours(rng):
    halide = pytest.importorskip("halide")
    import ctypes

    from tilewright.bench.peers.halide import halide_call

    count = ctypes.CDLL(halide.halide_.__file__)._ZN6Halide8Internal16JITSharedRuntime15get_num_threadsEv
    for wanted in (3, 1, 2):
        with threads(wanted):
            halide_call(CASES[0], spec.make(CASES[0], rng))
        assert count() == wanted


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_opencvs_passes(case, rng):
    pytest.importorskip("cv2")
    from tilewright.bench.peers.opencv import opencv_call

    inputs = spec.make(case, rng)
    call = opencv_call(case, inputs)
    assert (call is not None) == isinstance(inputs["weights"], tuple)
    checked(case, inputs, [call] if call else [])
