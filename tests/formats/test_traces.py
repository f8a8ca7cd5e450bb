"""Traces read again: what --trace wrote, and what is refused."""

import json

import pytest

from tilewright.errors import InputError
from tilewright.formats import traces
from tilewright.formats.traces import read_trace

EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "worker 0 (h)", "worker": 0, "host": "h",
                                                                    "device": "cores 0-1"}},
    {"ph": "M", "name": "process_sort_index", "pid": 1, "tid": 0, "args": {"sort_index": 0}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 0, "args": {"name": "write"}},
    {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 0, "args": {"sort_index": 5}},
    {"ph": "X", "name": "write", "pid": 1, "tid": 0, "ts": 3000.0, "dur": 500.0},
    {"ph": "X", "name": "write", "pid": 1, "tid": 0, "ts": 1000.5, "dur": 250.0},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "shard"}},
    {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 1, "args": {"sort_index": 0}},
    {"ph": "X", "name": "shard 0", "pid": 1, "tid": 1, "ts": 1000, "dur": 2500, "args": {"records": 7}},
    {"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "args": {"labels": "7 records"}},
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "lead (h)", "worker": None, "host": "h"}},
    {"ph": "X", "name": "plan", "pid": 0, "tid": 0, "ts": 0.0, "dur": 900.0},
]  # fmt: skip


def written(path, events):
    path.write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}))
    return path


def test_workers_and_their_lanes(tmp_path):
    lead, worker = read_trace(written(tmp_path / "a.json", EVENTS))
    assert lead.worker is None and [lane.spans for lane in lead.rows] == [[(0.0, 0.9)]]
    assert (worker.worker, worker.device, worker.records) == (0, "cores 0-1", 7)
    assert [lane.name for lane in worker.rows] == ["shard", "write"]
    assert worker.rows[1].spans == [(1.0005, 1.2505), (3.0, 3.5)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "this is no trace of a job"),
        ("[]", "this is no trace of a job"),
        ('{"traceEvents": 1}', "this is no trace of a job"),
        ('{"traceEvents": [{"ph": "X", "pid": "a", "name": "b"}]}', "this is no trace of a job"),
        ('{"traceEvents": [{"ph": "X", "pid": 1, "name": "b", "ts": 1e300}]}', "event 1: the event begins at 1e+300"),
        ('{"traceEvents": [{"ph": "X", "pid": 1, "name": "b", "dur": -1}]}', "takes -1 us; both must be times"),
    ],
)
def test_other_files_are_refused(tmp_path, text, says):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError, match=str(path)) as caught:
        read_trace(path)
    assert says in str(caught.value)


def test_a_file_beyond_any_trace_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "MOST_BYTES", 10)
    with pytest.raises(InputError, match="at most 10 are read"):
        read_trace(written(tmp_path / "a.json", EVENTS))
