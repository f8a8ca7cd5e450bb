"""The CPU's clock."""

import time

from tilewright.bench.clocks import cpu as module
from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.measure import interleave


def test_caches_are_emptied_before_each_call_and_outside_its_time(monkeypatch):
    events = []

    def empty():
        events.append("empty")
        time.sleep(0.005)

    monkeypatch.setattr(module, "empty_caches", empty)
    timings = interleave({name: lambda: events.append("call") for name in "ab"}, CpuClock(), runs=3, warm_up=1)
    assert events == ["empty", "call"] * 8
    assert timings["a"].median_s < 0.004
    events.clear()
    interleave({"a": lambda: events.append("call")}, CpuClock(cold=False), runs=3, warm_up=0)
    assert events == ["call"] * 3


def test_a_call_begins_when_the_peers_threads_sleep_on_cores_that_work(monkeypatch):
    events = []
    monkeypatch.setattr(module.time, "sleep", lambda s: events.append(f"sleep {s >= 0.2}"))
    monkeypatch.setattr(module, "rouse", lambda: events.append("rouse"))
    monkeypatch.setattr(module, "empty_caches", lambda: events.append("empty"))
    interleave({"a": lambda: events.append("call")}, CpuClock(settle=True), runs=2, warm_up=0)
    assert events == ["sleep True", "empty", "rouse", "call"] * 2


def test_rousing_takes_as_long_as_it_is_told():
    module.rouse(1)
    start = time.perf_counter()
    module.rouse(20_000_000)
    assert 0.002 < time.perf_counter() - start < 2


def test_the_buffer_is_larger_than_the_last_cache():
    buffer = []
    module.empty_caches(buffer)
    kept = buffer[0]
    module.empty_caches(buffer)
    assert buffer[0] is kept
    assert kept.nbytes >= max(2 * (module.cpu().l3 or 0), 64 << 20)
    assert kept.min() == kept.max() == 2
