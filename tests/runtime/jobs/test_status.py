"""What `tilewright status` says: who is at work as the lock knows it, and what a finished job lacks."""

import errno
import fcntl
import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

import toy_jobs
from tilewright.cli import main
from tilewright.errors import InternalError, UsageError
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.jobs import lease
from tilewright.runtime.jobs.directory import FOLDERS, JobDirectory
from tilewright.runtime.jobs.lease import Lease
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.status import status


def test_status(place):
    with pytest.raises(UsageError, match="there is no job") as caught:
        status(place.output)
    assert "such as" not in str(caught.value)
    seen = []

    def look(record):
        now = status(place.output)
        seen.append((now.state, now.shards, now.done, now.records, now.holder.pid == os.getpid()))
        assert (now.rate > 0) == (now.done > 0)
        if now.done:
            assert now.seconds_left == pytest.approx((40 - now.records) / now.rate)

    run(place.task(slow=0.002), place.output, Inline(), watch=toy_jobs.Seen(look))
    assert seen == [("running", 10, n, 4 * n, True) for n in range(1, 11)]
    end = status(place.output)
    assert (end.state, end.done, end.seconds_left, end.holder) == ("finished", 10, 0.0, None)
    os.unlink(f"{place.output}.job/report.json")
    os.unlink(f"{place.output}.job/shards/00004.part")
    assert status(place.output).state == "stopped" and status(place.output).done == 9
    with pytest.raises(UsageError, match=f"such as {os.path.basename(place.output)}"):
        status(f"{place.output}x")


def test_a_job_that_its_bad_records_stopped(place, capsys):
    Path(place.input).write_bytes(b"line\nbad\n" * 40)
    task = toy_jobs.Upper(place.input)
    for _ in range(2):  # the second has nothing to compute before it is stopped
        with pytest.raises(InternalError, match="bad and 3 are allowed"):
            run(task, place.output, Inline(), Settings(max_errors=3))
        found = status(place.output)
        assert found.state == "stopped" and found.too_many.startswith(f"{found.errors} of the first {found.records}")
        assert "records are bad and 3 are allowed; the first is line 2" in found.too_many
        out = said(capsys, place.output)
        assert f"stopped by --max-errors: {found.too_many}; allow more" in out and "resume" not in out
        assert json.loads(said(capsys, place.output, "--json"))["too_many"] == found.too_many
    with open(f"{place.output}.job/ended.json", "a") as file:
        file.write("x")
    assert status(place.output).too_many is None  # it is not what was written
    during = []
    watch = toy_jobs.Seen(lambda record: during.append(status(place.output).too_many))
    assert run(task, place.output, Inline(), watch=watch).errors == 40
    assert set(during) == {None} and status(place.output).too_many is None
    assert not os.path.exists(f"{place.output}.job/ended.json")


@pytest.mark.parametrize("made", range(len(FOLDERS) + 1))
def test_a_job_that_was_killed_at_its_very_start(place, made):
    """Between the first folder and the manifest there is nothing to tell, and nothing is changed."""
    os.mkdir(f"{place.output}.job")
    for name in FOLDERS[:made]:
        os.mkdir(f"{place.output}.job/{name}")
    with pytest.raises(UsageError, match="the job is begun, and nothing of it is done yet"):
        status(place.output)
    assert verify(place.output).damaged == ["manifest.json: there is no manifest.json"]
    assert sorted(os.listdir(f"{place.output}.job")) == sorted(FOLDERS[:made])
    run(place.task(), place.output, Inline())
    place.check()


def test_a_finished_job_without_its_folder_of_shards(place):
    run(place.task(), place.output, Inline())
    shutil.rmtree(f"{place.output}.job/shards")
    found = status(place.output)
    assert (found.state, found.done, found.gone) == ("damaged", 0, ["10 shards"])


def test_a_lease_is_no_obstacle_to_those_who_look(place):
    run(place.task(), place.output, Inline())
    with JobDirectory(place.output) as directory, Lease(directory):
        assert status(place.output).state == "running" and verify(place.output).intact


def said(capsys, *argv):
    """What the command line says of a job."""
    with pytest.raises(SystemExit) as ended:
        main(["status", *argv])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.fixture
def elsewhere(place):
    """A job of which nine shards are there; its lease names another host, where it was killed."""
    run(place.task(), place.output, Inline())
    for name in ("report.json", "shards/00004.part"):
        os.unlink(f"{place.output}.job/{name}")
    holder = {"host": "elsewhere", "pid": os.getpid(), "start": 1, "since": time.time()}
    path = f"{place.output}.job/lease"
    with open(path, "w") as file:
        json.dump(holder, file)
    return path


def test_a_lease_of_another_host_without_its_lock_is_nobodys(place, elsewhere, capsys):
    found = status(place.output)
    assert (found.state, found.holder) == ("stopped", None)
    out = said(capsys, place.output)
    assert out.startswith("stopped: 9 of 10 shards") and "at work" not in out


@pytest.mark.parametrize("how", [fcntl.LOCK_EX, fcntl.LOCK_SH], ids=["all", "parts"])
def test_a_lock_that_is_held_elsewhere(place, elsewhere, capsys, how):
    """By a run of all or of a part; whoever looks leaves it as it is."""
    with open(elsewhere) as file:
        fcntl.flock(file, how)
        for _ in range(2):
            found = status(place.output)
            assert (found.state, found.holder.host) == ("running", "elsewhere")
        assert "running on: process" in said(capsys, place.output)
    assert status(place.output).state == "stopped"


def test_a_file_system_without_locks(place, elsewhere, monkeypatch, capsys):
    """Of this host's processes it is known who lives; of others' nothing is, and that is said."""

    def refuse(fd, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert status(place.output).state == "perhaps running"
    out = said(capsys, place.output)
    assert out.startswith("perhaps running: 9 of 10") and "perhaps running on: process" in out and "no locks" in out
    os.truncate(elsewhere, 0)
    assert (status(place.output).state, status(place.output).holder) == ("stopped", None)
    for pid, start, state in ((os.getpid(), None, "running"), (os.getpid(), 1, "stopped")):
        started = lease._started(pid) if start is None else start
        holder = {"host": os.uname().nodename, "pid": pid, "start": started, "since": time.time()}
        with open(elsewhere, "w") as file:
            json.dump(holder, file)
        assert status(place.output).state == state


def test_a_run_begins_while_somebody_looks(place, elsewhere):
    """The lock that a look takes for a moment keeps nobody out."""
    with open(elsewhere) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        began = time.monotonic()
        threading.Timer(0.2, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        run(place.task(), place.output, Inline())
        assert time.monotonic() - began >= 0.2
    place.check()


@pytest.mark.parametrize("what", ["shard", "output", "report"])
def test_a_finished_job_that_lacks_something(place, capsys, what):
    """It is not called finished; and what is said to help does."""
    run(place.task(), place.output, Inline())
    path = {"shard": f"{place.output}.job/shards/00004.part", "output": place.output}
    if what == "report":
        with open(f"{place.output}.job/report.json", "w") as file:
            file.write("{}")
    else:
        os.unlink(path[what])
    found = status(place.output)
    names = {"shard": "1 shard", "output": place.output, "report": "an intact report"}
    assert (found.state, found.gone) == ("damaged", [names[what]])
    out = said(capsys, place.output)
    done = 9 if what == "shard" else 10
    assert out.startswith(f"damaged: {done} of 10 shards") and f"missing since it finished: {names[what]};" in out
    assert json.loads(said(capsys, place.output, "--json"))["gone"] == [names[what]]
    assert not verify(place.output).intact
    run(place.task(), place.output, Inline())
    assert status(place.output).state == "finished" and verify(place.output).intact
