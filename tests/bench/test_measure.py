"""The protocol of a timing."""

import time

import pytest

from tilewright.bench import measure
from tilewright.bench.measure import Timing, interleave


def test_calls_take_turns_and_warm_up_is_not_timed():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    timings = interleave(calls, runs=20, warm_up=2, cold=False)
    rounds = [order[i : i + 3] for i in range(0, len(order), 3)]
    assert len(rounds) == 22
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len({tuple(turn) for turn in rounds}) > 1, "the order within a round never changes"
    assert {name: len(timing.rounds) for name, timing in timings.items()} == dict.fromkeys("abc", 20)


def test_caches_are_emptied_before_each_call_and_outside_its_time(monkeypatch):
    events = []

    def empty():
        events.append("empty")
        time.sleep(0.005)

    monkeypatch.setattr(measure, "empty_caches", empty)
    timings = interleave({name: lambda: events.append("call") for name in "ab"}, runs=3, warm_up=1)
    assert events == ["empty", "call"] * 8
    assert timings["a"].median_s < 0.004
    events.clear()
    interleave({"a": lambda: events.append("call")}, runs=3, warm_up=0, cold=False)
    assert events == ["call"] * 3


def test_a_call_begins_when_the_peers_threads_sleep_on_cores_that_work(monkeypatch):
    events = []
    monkeypatch.setattr(measure.time, "sleep", lambda s: events.append(f"sleep {s >= 0.2}"))
    monkeypatch.setattr(measure, "rouse", lambda: events.append("rouse"))
    monkeypatch.setattr(measure, "empty_caches", lambda: events.append("empty"))
    interleave({"a": lambda: events.append("call")}, runs=2, warm_up=0, spinning={"a"})
    assert events == ["sleep True", "empty", "rouse", "call"] * 2


def test_rousing_takes_as_long_as_it_is_told():
    measure.rouse(1)
    start = time.perf_counter()
    measure.rouse(20_000_000)
    assert 0.002 < time.perf_counter() - start < 2


def test_the_buffer_is_larger_than_the_last_cache():
    buffer = []
    measure.empty_caches(buffer)
    kept = buffer[0]
    measure.empty_caches(buffer)
    assert buffer[0] is kept
    assert kept.nbytes >= max(2 * (measure.cpu().l3 or 0), 64 << 20)
    assert kept.min() == kept.max() == 2


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
    timings = interleave({"sleeps": lambda: time.sleep(0.003), "returns": lambda: None}, runs=3, cold=False)
    assert timings["sleeps"].median_s >= 0.003
    assert timings["returns"].times_faster_than(timings["sleeps"]) > 1
