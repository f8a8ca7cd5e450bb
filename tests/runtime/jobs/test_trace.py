"""A Chrome trace of all workers: what each did, in rows, on one clock; nothing where nobody asked."""

import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright.errors import InputError, UsageError
from tilewright.formats.traces import read_trace
from tilewright.hardware import machine_name
from tilewright.hardware.checkout import commit
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.engines.local import Local
from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings


def read(path):
    """{process: {row: [(name, begin, end), ...]}} of a trace; times in µs."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    names = {(e["pid"], e["tid"], e["name"]): e["args"].get("name") for e in events if e["ph"] == "M"}
    found = {}
    for event in events:
        if event["ph"] == "X":
            process = names[event["pid"], 0, "process_name"].partition(" (")[0]
            row = names[event["pid"], event["tid"], "thread_name"]
            happened = event["name"], event["ts"], event["ts"] + event["dur"]
            found.setdefault(process, {}).setdefault(row, []).append(happened)
    return found


def check_shards(found, workers):
    """Each shard once, by one of the workers, its commit at its end."""
    assert set(found) <= {"lead", *workers} and found["lead"].keys() == {"plan", "run", "merge"}
    begin, end = found["lead"]["run"][0][1:]
    seen = []
    for worker in workers:
        commits = iter(found.get(worker, {}).get("commit", []))
        for name, first, last in found.get(worker, {}).get("shard", []):
            _, *commit = next(commits)
            assert begin <= first <= commit[0] <= commit[1] <= last + 1 <= end + 2  # ns were rounded to µs
            seen.append(name)
    assert sorted(seen) == sorted(f"shard {number}" for number in range(10))


@pytest.mark.parametrize("workers", [0, 2])
def test_who_did_what_when(place, tmp_path_factory, workers):
    path = str(tmp_path_factory.mktemp("trace") / "out.json")
    run(place.task(), place.output, Local(workers) if workers else Inline(), Settings(trace=path))
    check_shards(read(path), [f"worker {number}" for number in range(max(workers, 1))])
    place.check()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trace_says_where_and_when_it_was_recorded(place, tmp_path_factory, workers):
    """A worker names the whole machine, not its share of the cores."""
    path = str(tmp_path_factory.mktemp("trace") / "out.json")
    run(place.task(), place.output, Local(workers) if workers else Inline(), Settings(trace=path))
    lead, worker, *_ = read_trace(path)
    assert (lead.machine, worker.machine) == ("", machine_name())
    assert worker.commit == commit() and re.fullmatch(r"\d{4}-\d\d-\d\d", worker.date)


def test_a_run_that_fails_has_its_trace(place, tmp_path_factory):
    """And the next one has only its own."""
    path = str(tmp_path_factory.mktemp("trace") / "out.json")
    with pytest.raises(InputError):
        run(place.task(trouble={21: ("error", 1)}), place.output, Inline(), Settings(trace=path))
    assert len(read(path)["worker 0"]["commit"]) == 5
    run(place.task(), place.output, Inline(), Settings(trace=path))
    assert len(read(path)["worker 0"]["commit"]) == 5 and len(read(path)["lead"]["merge"]) == 1


def test_a_trace_is_not_the_output(place):
    with pytest.raises(UsageError, match="the trace would be written over the output"):
        run(place.task(), place.output, Inline(), Settings(trace=place.output))


def test_a_trace_takes_the_place_of_traces_alone(place):
    place.fill(4)
    before = Path(place.input).read_bytes()
    with pytest.raises(UsageError, match="the file exists and is no trace"):
        run(place.task(), place.output, Inline(), Settings(trace=place.input))
    assert Path(place.input).read_bytes() == before and not os.path.exists(place.output)
    trace_path = f"{place.output}.trace"
    for _ in range(2):
        run(place.task(), place.output, Inline(), Settings(trace=trace_path, restart=True))
    assert json.loads(Path(trace_path).read_bytes())["traceEvents"]


def test_nothing_is_recorded_where_nobody_asked(place):
    assert trace.span(trace.READ) is trace.OFF and trace.device_span(trace.COMPUTE) is trace.OFF
    run(place.task(), place.output, Inline())
    assert os.listdir(f"{place.output}.job/logs") == []


@pytest.fixture
def recorded(place, monkeypatch):
    """Runs a function while a worker records; returns what the trace says of that worker."""

    def call(function):
        path = f"{place.path}/out.json"
        with (
            JobDirectory(place.output, make=True) as directory,
            trace.tracing(directory, path),
            trace.recording(directory, 3),
        ):
            function(directory)
        return read(path)["worker 3"]

    return call


def test_a_worker_that_was_killed_as_it_wrote(recorded):
    def torn(directory):
        with trace.span(trace.SHARD, "shard 1"):
            pass
        with open(directory.logs.where(f"trace-3-{os.getpid()}.jsonl"), "ab") as file:
            file.write(b'["read",0,"re\n\xff\n')

    assert [name for name, _, _ in recorded(torn)["shard"]] == ["shard 1"]


def test_a_trace_does_not_fill_the_disk(recorded, monkeypatch):
    monkeypatch.setattr(trace, "MOST", 5)
    monkeypatch.setattr(trace, "KEPT", 3)

    def many(directory):
        for number in range(100):
            with trace.span(trace.READ, str(number)):
                pass

    assert [name for name, _, _ in recorded(many)["read"]] == ["0", "1", "2", "3", "4"]


class Clock:
    """A GPU that does one thing a millisecond."""

    now = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        Clock.now += 1.0
        self.at = Clock.now

    def synchronize(self):
        """It has happened."""

    def elapsed_time(self, end):
        return end.at - self.at


def test_what_a_gpu_did(recorded, monkeypatch):
    """By its own clock: the second span begins 2 ms after the first, which the host cannot know."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(Event=Clock)))

    def compute(directory):
        for name in ("a", "b"):
            with trace.device_span(trace.COMPUTE, name):
                pass

    (first, begin, end), (second, later, _) = recorded(compute)["compute, GPU"]
    assert (first, second) == ("a", "b")
    assert (round(end - begin), round(later - begin)) == (1000, 2000)
