"""A repeated pass runs its recorded launches again where that gives the same bits, and is computed everywhere else."""

import os

import numpy as np
import pytest
from numba import types

from tilewright import simd
from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import launch, recorded_by, run_on_threads, threads
from tilewright.ops.core.recording import REPLAYS, TRIES, RepeatedPass, no_replays
from tilewright.ops.core.replay import Recording
from tilewright.ops.layernorm import layernorm
from tilewright.ops.matmul import matmul, prepare

SIZE = 768  # two threads take a product's columns


@simd.kernel(types.void(simd.OUTPUT, types.float64, types.int64, simd.TASKS, simd.OUTPUT), name="test.divide_recorded")
def divide(x, above, below, tasks, scratch):
    """x[task] = above // below of that element."""
    task = simd.draw(tasks)
    while task >= 0:
        x[task] = above // int(x[task]) + below
        task = simd.draw(tasks)


@simd.kernel(types.void(types.boolean, simd.OUTPUT, simd.TASKS, simd.OUTPUT), name="test.double")
def double(flag, x, tasks, scratch):
    """x *= 2; no helper can run it, because of its boolean."""
    x[0] *= 2


@simd.kernel(types.void(simd.COUNTERS, simd.OUTPUT), name="test.counted")
def counted(plan, scratch):
    """plan[0] += 1 on each thread."""
    simd.fetch_add(plan, 0, 1)


class Pass:
    """h = norm(x), y = h @ b + x; counts how often it is computed. changed: what NumPy does to h between both."""

    def __init__(self, rng, changed=lambda h: h):
        self.x, self.h, self.y = (np.zeros((1, SIZE), np.float32) for _ in range(3))
        self.weight, self.bias = rng.standard_normal((2, SIZE), np.float32)
        self.b, self.changed = prepare(rng.standard_normal((SIZE, SIZE), np.float32)), changed
        self.repeated, self.computed, self.rng = RepeatedPass(), 0, rng

    def compute(self) -> np.ndarray:
        self.computed += 1
        layernorm(self.x, self.weight, self.bias, out=self.h)
        return matmul(self.changed(self.h), self.b, residual=self.x, out=self.y)

    def run(self, count: int) -> int:
        """Runs it for new values of x, and compares; returns how often it was computed for that."""
        computed = 0
        for _ in range(count):
            self.x[...] = self.rng.standard_normal((1, SIZE))
            wanted, self.computed = self.compute().copy(), 0
            self.h[...], self.y[...] = np.nan, np.nan
            found = self.repeated.run(self.x, self.compute)
            assert found is self.y and found.tobytes() == wanted.tobytes()
            computed += self.computed
        return computed


@pytest.mark.parametrize("count", [1, 2, 3])
def test_two_passes_are_recorded_and_the_next_replayed(count, rng):
    with threads(count):
        assert Pass(rng).run(20) == 2


def test_a_recording_does_not_serve_forever(rng):
    one = Pass(rng)
    assert one.run(2 + REPLAYS) == 2
    assert one.run(2 + REPLAYS) == 2


def test_what_numpy_computes_between_launches_is_not_lost(rng):
    assert Pass(rng, changed=lambda h: h * 2).run(3 * TRIES) == 3 * TRIES


def test_another_number_of_threads_or_another_start_begins_again(rng):
    one = Pass(rng)
    with threads(1):
        assert one.run(3) == 2
    with threads(2):
        assert one.run(3) == 2
        one.x = one.x.copy()
        assert one.run(3) == 2


def test_forced_rungs_and_profiles_are_computed(rng):
    one = Pass(rng)
    assert one.run(3) == 2
    with using(layernorm="cpu.naive"):
        assert one.run(2) == 2
    with no_replays():
        assert one.run(2) == 2
    assert one.run(2) == 0


@pytest.mark.parametrize("count", [1, 2])
def test_a_kernel_raises_in_a_replay(count):
    x, repeated = np.empty(64, np.float32), RepeatedPass()

    def compute() -> np.ndarray:
        launch(divide, x, 6.0, 1, tasks=64, words=1)
        return x

    with threads(count):
        for _ in range(3):
            x[...] = 3
            assert repeated.run(x, compute)[0] == 3
        x[...] = 0
        with pytest.raises(ZeroDivisionError):
            repeated.run(x, compute)
        x[...] = 2
        assert repeated.run(x, compute)[0] == 4


def test_a_kernel_that_cannot_be_recorded_runs_each_time():
    x, repeated = np.ones(1, np.float32), RepeatedPass()

    def compute() -> np.ndarray:
        launch(double, True, x, tasks=1, words=1)
        return x

    for i in range(2 * TRIES):
        assert repeated.run(x, compute)[0] == 2 ** (i + 1)


def test_a_launch_that_every_thread_must_run_is_not_recorded():
    """A replay may withdraw it from a helper that starts late."""
    recording, plan = Recording(), np.zeros(8, np.int64)
    with threads(2), recorded_by(recording):
        run_on_threads(counted, plan, tasks=2, words=1, drawn=False)
    assert plan[0] == 2 and not recording.is_complete and not recording.launches


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_replays_with_helpers_of_its_own(rng):
    with threads(2):
        one = Pass(rng)
        one.run(3)
        child = os.fork()
        if child == 0:
            try:
                os._exit(one.run(2))
            finally:
                os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
