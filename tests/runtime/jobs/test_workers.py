"""Status and trace name each worker's host, device and records."""

import json
import os
from pathlib import Path

import pytest

from tilewright.cli import main
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.engines.local import Local
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.status import status
from tilewright.runtime.jobs.task import Place
from tilewright.runtime.jobs.workers import WorkerDone, workers_of

HOST = os.uname().nodename


@pytest.mark.parametrize(
    ("place", "device"),
    [
        (Place(), "CPU"),
        (Place(cores=(3,)), "core 3"),
        (Place(cores=(0, 1, 2, 5)), "cores 0-2, 5"),
        (Place(cores=(0, 1), gpu="1"), "GPU 1"),
        (Place(gpu=""), "GPU"),
    ],
)
def test_the_device_of_a_worker(place, device):
    assert place.device == device


def test_each_worker_with_its_device_and_records(place, tmp_path_factory, capsys):
    """The records are those of the job; the trace says the same as the status."""
    path = tmp_path_factory.mktemp("trace") / "out.json"
    run(place.task(slow=0.01), place.output, Local(2, ("7", "8")), Settings(trace=str(path)))
    found = status(place.output).workers
    assert [(one.worker, one.host, one.device) for one in found] == [(0, HOST, "GPU 7"), (1, HOST, "GPU 8")]
    assert (sum(one.records for one in found), sum(one.shards for one in found)) == (40, 10)
    with pytest.raises(SystemExit):
        main(["status", place.output])
    out = capsys.readouterr().out
    for one in found:
        assert f"worker {one.worker} on {HOST}, {one.device}: {one.records} records in {one.shards} shard" in out
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["pid"]: event["args"] for event in events if event["name"] == "process_name"}
    labels = {event["pid"]: event["args"]["labels"] for event in events if event["name"] == "process_labels"}
    told = {
        (about["worker"], about["host"], about["device"]): labels[pid] for pid, about in names.items() if pid in labels
    }
    assert told == {(one.worker, HOST, one.device): f"{one.records} records" for one in found}
    assert any(f"worker 1 ({HOST}, GPU 8, process " in about["name"] for about in names.values())


def test_runs_are_added_and_damaged_files_ignored(place):
    run(place.task(), place.output, Inline())
    assert status(place.output).workers == []
    logs = Path(f"{place.output}.job/logs")
    for pid, records in ((1, 4), (2, 8)):
        (logs / f"done-0-a-{pid}.json").write_text(
            f'{{"worker":0,"host":"a","device":"CPU","shards":1,"records":{records}}}\n'
        )
    (logs / "done-1-a-3.json").write_bytes(b'{"worker":\xff')
    (logs / "done-2-a-3.json").write_bytes(b"")
    with JobDirectory(place.output, look=True) as directory:
        assert workers_of(directory) == [WorkerDone(0, "a", "CPU", 2, 12)]
