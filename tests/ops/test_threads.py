"""A launch runs a kernel on all its threads and returns when all have finished, whatever happens meanwhile."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from numba import types

from tilewright import simd
from tilewright.errors import UsageError
from tilewright.ops.core import launch as launches
from tilewright.ops.core import team as team_module
from tilewright.ops.core.launch import run_on_threads, thread_count, threads

MAIN = 7.0  # the first element of this thread's scratch, and of no helper's
_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))
ARRIVED, LEFT, WAIT_HERE, WAIT_THERE, FAIL_HERE, FAIL_THERE = range(
    6
)  # elements of a plan: counts of threads, then wishes


@simd.kernel(types.void(simd.COUNTERS, simd.OUTPUT), name="test.meet_all")
def meet_all(plan, scratch):
    """Three threads arrive and wait for each other. Then each waits (us) or fails if the plan says so for the launching
    thread or for helpers."""
    here = scratch[0] == MAIN
    simd.fetch_add(plan, ARRIVED, 1)
    while simd.load_acquire(plan, ARRIVED) < 3:
        simd.relax()
    _sleep(np.uint32(plan[WAIT_HERE if here else WAIT_THERE]))
    if plan[FAIL_HERE if here else FAIL_THERE]:
        raise ZeroDivisionError("on purpose")
    simd.fetch_add(plan, LEFT, 1 if here else 100)


def on_three(**wishes) -> tuple[int, str]:
    """Launch on three threads; returns which ones left (1 for this thread, 100 for a helper) and what was raised."""
    plan = np.zeros(6, np.int64)
    for name, value in wishes.items():
        plan[globals()[name]] = value
    launches.scratch(1)[0] = MAIN
    with threads(3):
        try:
            run_on_threads(meet_all, plan, tasks=9, words=1, drawn=False)
        except (KeyboardInterrupt, ZeroDivisionError) as error:
            return int(plan[LEFT]), type(error).__name__
    return int(plan[LEFT]), ""


@pytest.fixture
def interruptible():
    """Ctrl-C raises KeyboardInterrupt, also where the tests run in the background, which ignores it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def test_every_thread_takes_part_also_after_a_sleep():
    """Helpers poll for 200 us, then sleep: the launch wakes them."""
    for pause in (0, 0, *np.linspace(0.0001, 0.0005, 100), 0.05):
        time.sleep(pause)
        assert on_three() == (201, "")


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("wishes", [{"WAIT_HERE": 300_000}, {"WAIT_THERE": 300_000}])
def test_an_interrupt_waits_for_all(wishes):
    """Helpers write to the caller's memory, which may be freed once the exception has left the launch."""
    on_three()
    here = threading.get_ident()
    threading.Timer(0.1, lambda: signal.pthread_kill(here, signal.SIGINT)).start()
    assert on_three(**wishes) == (201, "KeyboardInterrupt")
    assert on_three() == (201, "")  # and the helpers serve on


@pytest.mark.parametrize(("wish", "left"), [("FAIL_HERE", 200), ("FAIL_THERE", 1)])
def test_what_a_thread_raises_arrives(wish, left):
    assert on_three(**{wish: 1}) == (left, "ZeroDivisionError")
    assert on_three() == (201, "")


@pytest.mark.parametrize("wish", ["FAIL_HERE", "FAIL_THERE"])
def test_an_error_names_the_kernel(wish):
    plan = np.zeros(6, np.int64)
    plan[globals()[wish]] = 1
    launches.scratch(1)[0] = MAIN
    with threads(3), pytest.raises(ZeroDivisionError, match="on purpose") as error:
        run_on_threads(meet_all, plan, tasks=9, words=1, drawn=False)
    assert error.value.__notes__ == ["raised inside the kernel test.meet_all"]


def test_an_interrupt_after_a_new_helper_started(monkeypatch):
    """The helper runs and is not recorded yet: a second thread for its slot returns at once."""

    class Interrupted(threading.Thread):
        def start(self):
            super().start()
            raise KeyboardInterrupt

    team = team_module.Team()
    monkeypatch.setattr(launches, "team", lambda: team)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading, "Thread", Interrupted)
        launch_on_two(np.zeros(6, np.int64))
    for _ in range(3):
        assert on_three() == (201, "")


def launch_on_two(plan):
    """`meet_all` on two threads; the plan counts a third one as arrived."""
    plan[ARRIVED] = 1
    with threads(2):
        run_on_threads(meet_all, plan, tasks=2, words=1, drawn=False)


@simd.kernel(
    types.void(types.float32, types.float64, simd.INPUT_2D, types.int64, simd.COUNTERS, simd.OUTPUT),
    name="test.sum_arguments",
)
def sum_arguments(x, y, a, n, plan, scratch):
    """Each of two threads checks its arguments and its own scratch, and writes the verdict to its slot of the plan."""
    slot = simd.fetch_add(plan, 0, 1)
    while simd.load_acquire(plan, 0) < 2:
        simd.relax()
    for i in range(scratch.size):
        scratch[i] = slot
    simd.fetch_add(plan, 1, 1)
    while simd.load_acquire(plan, 1) < 2:
        simd.relax()
    total = 0.0
    for i in range(scratch.size):
        total += scratch[i]
    plan[2 + slot] = total == slot * scratch.size and x == 0.5 and y == 0.1 and a[1, 2] == 6 and a.shape[0] == n


@pytest.mark.parametrize("words", [1, 5000, 100, 70_000])
def test_arguments_arrive_on_every_thread_with_a_scratch_of_its_own(words):
    a, plan = np.zeros((4, 3), np.float32), np.zeros(4, np.int64)
    a[1, 2] = 6
    with threads(2):
        run_on_threads(sum_arguments, 0.5, 0.1, a, 4, plan, tasks=2, words=words, drawn=False)
        assert list(plan) == [2, 2, 1, 1]
        with pytest.raises(TypeError, match="No matching definition"):
            run_on_threads(sum_arguments, 0.5, 0.1, a.astype(np.float64), 4, plan, tasks=2, words=words, drawn=False)


@simd.kernel(types.void(simd.COUNTERS, simd.OUTPUT), name="test.draw")
def draw_tasks(plan, scratch):
    """Count tasks 0 .. 999 at plan[1]."""
    while simd.fetch_add(plan, 0, 1) < 1000:
        simd.fetch_add(plan, 1, 1)


def draw_often(found: list[int]) -> None:
    """50 launches of `draw_tasks` on two threads."""
    for _ in range(50):
        plan = np.zeros(2, np.int64)
        with threads(2):
            run_on_threads(draw_tasks, plan, tasks=1000, words=1, drawn=False)
        found.append(int(plan[1]))


def test_launches_of_several_threads():
    found: list[int] = []
    callers = [threading.Thread(target=draw_often, args=(found,)) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [1000] * 200


def test_an_interrupt_while_scratch_is_made(monkeypatch):
    """The next launch completes it: no helper computes in freed memory."""
    team = team_module.Team()
    monkeypatch.setattr(launches, "team", lambda: team)
    assert on_three() == (201, "")

    class Gone:
        @property
        def ctypes(self):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(team_module, "zeros", lambda words: Gone())
        team.make_ready(2, 5000)
    team.make_ready(2, 5000)
    for helper in range(2):
        slot, array = team_module.SLOTS + helper * team_module.SLOT, team.scratches[helper]
        assert (team.control[slot + team_module.SCRATCH_SIZE], array.size) == (5000, 5000)
        assert team.control[slot + team_module.SCRATCH] == array.ctypes.data
    assert on_three() == (201, "")


@simd.kernel(types.void(simd.COUNTERS, simd.TASKS, simd.OUTPUT), name="test.count_drawn")
def count_drawn(plan, tasks, scratch):
    """Count the tasks at plan[0]."""
    while simd.draw(tasks) >= 0:
        simd.fetch_add(plan, 0, 1)


def test_a_launch_does_not_wait_for_a_helper_that_comes_too_late(monkeypatch):
    """The job is withdrawn: its tasks are done. The helper serves the next launches."""

    class Late(threading.Thread):
        def start(self):
            """Start nothing yet."""

    team, slot = team_module.Team(), team_module.SLOTS
    monkeypatch.setattr(launches, "team", lambda: team)
    with monkeypatch.context() as patch, threads(2):
        patch.setattr(threading, "Thread", Late)
        for _ in range(3):
            team.control[slot + team_module.CODE] = 1  # as if its last kernel had raised
            plan = np.zeros(1, np.int64)
            launches.launch(count_drawn, plan, tasks=9, words=1)
            assert plan[0] == 9
            assert team.control[slot + team_module.STATE] == team_module.WAITING
    threading.Thread(target=team_module.serve, args=(team.control, slot), daemon=True).start()
    plan = np.zeros(6, np.int64)
    launch_on_two(plan)
    assert plan[LEFT] > 100


def test_short_launches_after_pauses():
    """Helpers are asleep, waking or polling; every task is done once."""
    for pause in np.linspace(0, 0.0005, 100):
        time.sleep(pause)
        plan = np.zeros(1, np.int64)
        with threads(3):
            launches.launch(count_drawn, plan, tasks=50, words=1)
        assert plan[0] == 50


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_helpers_of_its_own():
    on_three()
    child = os.fork()
    if child == 0:
        os._exit(0 if on_three() == (201, "") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert on_three() == (201, "")


BUSY = """if True:
    import os, time
    import numpy as np
    from tilewright.ops.core.launch import threads
    from tilewright.ops.softmax import softmax
    with threads(2):
        softmax(np.zeros((512, 512), np.float32))
"""
CLOSED = """
    time.sleep(0.1)
    os.closerange(3, 100)
    for _ in range(3):
        time.sleep(0.01)
        with threads(2):
            assert softmax(np.zeros((512, 512), np.float32)).sum() == 512
"""


@pytest.mark.parametrize("code", [BUSY, BUSY + CLOSED], ids=["while helpers poll", "pipes closed"])
def test_a_process_ends(code):
    """Also one that closes all files, as a daemon does: its helpers then poll every millisecond."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@simd.kernel(types.void(types.boolean, simd.COUNTERS, simd.OUTPUT), name="test.boolean")
def boolean_kernel(flag, plan, scratch):
    """An argument that is not a 64-bit word."""


def test_a_kernel_whose_arguments_are_not_words_is_refused():
    with threads(2), pytest.raises(Exception, match="threads run kernels of arrays, int64 and some floats"):
        run_on_threads(boolean_kernel, True, np.zeros(2, np.int64), tasks=2, words=1, drawn=False)


@pytest.mark.parametrize("count", ["x", 1.5, 0, -1])
def test_a_wrong_number_of_threads_is_refused(count):
    with pytest.raises(UsageError, match=f"threads is {count!r}; "), threads(count):
        pytest.fail("the block was entered")


def test_threads_nest():
    with threads(3):
        with threads(None):
            assert thread_count() >= 1
        assert thread_count() == 3
