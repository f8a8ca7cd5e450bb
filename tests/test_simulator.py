"""The simulator whose threads run one after another (tests/simulator.py): barriers, missing ones, errors, counts."""

import threading

import numpy as np
import pytest

from gpu import ON_GPU
from simulator import in_turns

cuda = pytest.importorskip("numba.cuda")
pytestmark = pytest.mark.skipif(ON_GPU, reason="kernels run on a GPU")
THREADS = 40


@pytest.fixture(autouse=True)
def turns():
    with in_turns():
        yield


@cuda.jit
def rotate(out, step, waits):
    """Each thread writes its number for one that is `step` further; a barrier, if it waits, before that reads it."""
    thread, shared = cuda.threadIdx.x, cuda.shared.array(40, np.int64)
    for turn in range(3):
        shared[(thread + step) % THREADS] = thread + turn
        if waits:
            cuda.syncthreads()
        out[turn, thread] = shared[thread]
        cuda.syncthreads()


@pytest.mark.parametrize("step", [1, THREADS - 1, 7])
def test_a_missing_barrier_is_found_in_either_direction(step):
    for waits in (True, False):
        out = np.full((3, THREADS), -1)
        rotate[1, THREADS](out, step, waits)
        wanted = (np.arange(THREADS) - step) % THREADS + np.arange(3)[:, None]
        assert (out == wanted).all() == waits


@cuda.jit
def share(out, waits):
    """All threads read what the first one wrote, after a barrier if they wait."""
    shared = cuda.shared.array(1, np.int64)
    if cuda.threadIdx.x == 0:
        shared[0] = out[0] + 1
    if waits:
        cuda.syncthreads()
    out[cuda.threadIdx.x] = shared[0]


def test_a_missing_barrier_is_found_before_the_first_one():
    for waits in (True, False):
        out = np.full(THREADS, 7)
        share[1, THREADS](out, waits)
        assert (out == 8).all() == waits


@cuda.jit
def count(out, divisor):
    thread = cuda.threadIdx.x
    if thread >= 30:
        return  # the others do not wait for it
    out[thread] = cuda.syncthreads_count(thread % divisor == 0)


def test_counts_and_threads_that_end_early():
    out = np.zeros(THREADS, np.int64)
    count[1, THREADS](out, 2)
    assert out.tolist() == [15] * 30 + [0] * 10


def test_an_error_ends_all_threads_and_names_its_own():
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError, match=r"tid=\[\d+, 0, 0\]"):
        count[1, THREADS](np.zeros(THREADS, np.int64), 0)
    assert threading.active_count() == before
