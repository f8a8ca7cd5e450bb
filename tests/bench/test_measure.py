"""The protocol of a timing."""

import time

import numpy as np
import pytest

from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.measure import SameResults, Timing, interleave
from tilewright.errors import InternalError

CLOCK = CpuClock(cold=False)


def test_calls_take_turns_and_warm_up_is_not_timed():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    timings = interleave(calls, CLOCK, runs=20, warm_up=2)
    rounds = [order[i : i + 3] for i in range(0, len(order), 3)]
    assert len(rounds) == 22
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len({tuple(turn) for turn in rounds}) > 1, "the order within a round never changes"
    assert {name: len(timing.rounds) for name, timing in timings.items()} == dict.fromkeys("abc", 20)


def test_what_comes_before_a_call_is_not_timed_and_its_result_is_checked():
    seen = []
    calls = {name: lambda name=name: f"result of {name}" for name in "ab"}
    before = {"a": lambda: time.sleep(0.005)}
    timings = interleave(calls, CLOCK, runs=2, before=before, check=lambda *given: seen.append(given))
    assert timings["a"].median_s < 0.004 and len(seen) == 6
    assert set(seen) == {("a", "result of a"), ("b", "result of b")}


def test_a_call_whose_result_changes_is_not_timed():
    answers = iter((np.zeros(2), np.zeros(2), np.ones(2)))
    with pytest.raises(InternalError, match="two runs of fickle gave different bits"):
        interleave({"fickle": lambda: next(answers)}, CLOCK, runs=3, warm_up=0, check=SameResults())
    answers, check = iter(map(np.array, ([1], [2], [1]))), SameResults(may_differ=["library"])
    interleave({"library": lambda: next(answers)}, CLOCK, runs=3, warm_up=0, check=check)
    assert check.changed == {"library"} and check.first["library"] == [1]
    with pytest.raises(InternalError, match="different bits"):
        SameResults({"ours": np.zeros(2)})("ours", -np.zeros(2))


def test_figures_of_a_timing():
    timing = Timing((5.0, 1.0, 2.0, 4.0, 3.0))
    assert timing.median_s == 3
    assert timing.low_s == pytest.approx(1.4)
    assert timing.high_s == pytest.approx(4.6)


def test_a_ratio_is_of_the_same_round_so_that_noise_cancels():
    """The machine is three times slower in one round: both calls feel it, and the ratio does not."""
    fast, slow = Timing((1.0, 3.0, 1.0)), Timing((2.0, 6.0, 2.0))
    assert fast.times_faster_than(slow) == 2
    assert slow.times_faster_than(fast) == 0.5
    with pytest.raises(ValueError, match="shorter"):
        fast.times_faster_than(Timing((1.0,)))


def test_a_slow_call_is_seen_as_slow():
    timings = interleave({"sleeps": lambda: time.sleep(0.003), "returns": lambda: None}, CLOCK, runs=3)
    assert timings["sleeps"].median_s >= 0.003
    assert timings["returns"].times_faster_than(timings["sleeps"]) > 1
