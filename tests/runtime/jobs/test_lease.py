"""Two runs on one job: one goes on, the other names it; a run that is dead, however it died, holds nothing."""

import errno
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

from tilewright.errors import InputError, ResourceError
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.jobs import lease
from tilewright.runtime.jobs.directory import LEASE, JobDirectory
from tilewright.runtime.jobs.lease import Lease
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings

HOLD = """
import fcntl, sys, time
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.jobs import lease
from tilewright.runtime.jobs.directory import LEASE, JobDirectory
if sys.argv[2] == "unlocked":
    lease.Lease._lock = lambda self: False
with JobDirectory(sys.argv[1], make=True) as directory, lease.Lease(directory):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def hold(tmp_path):
    holders = []

    def call(way):
        process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "out"), way], stdout=subprocess.PIPE)
        holders.append(process)
        assert process.stdout.readline() == b"held\n"
        return process

    yield call
    for process in holders:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr(lease, "DYING_SECONDS", 0.0)


def no_locks(fd, how):
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize("way", ["locked", "unlocked"])
def test_the_second_names_the_first(tmp_path, monkeypatch, hold, way):
    first = hold(way)
    if way == "unlocked":
        monkeypatch.setattr(fcntl, "flock", no_locks)
    with JobDirectory(str(tmp_path / "out")) as directory:
        with pytest.raises(ResourceError, match=rf"process {first.pid} on {os.uname().nodename}, since 2") as caught:
            Lease(directory).__enter__()
        assert caught.value.exit_code == 4
        first.send_signal(signal.SIGKILL)
        first.wait()
        with Lease(directory):
            assert lease.holder_of(directory.root.read("lease", 4096)).pid == os.getpid()
        assert directory.root.read("lease", 4096) == b""


def test_without_locks_a_new_process_of_the_same_number_holds_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with JobDirectory(str(tmp_path / "out"), make=True) as directory:
        holder = {"host": os.uname().nodename, "pid": os.getppid(), "start": 1, "since": 0.0}
        (tmp_path / "out.job" / "lease").write_text(json.dumps(holder))
        with Lease(directory):
            pass
        holder["host"] = "elsewhere"  # nobody here can ask for its processes
        (tmp_path / "out.job" / "lease").write_text(json.dumps(holder))
        with pytest.raises(ResourceError, match=r"on elsewhere.*remove the file named lease"):
            Lease(directory).__enter__()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"host": 3}', b"\xff", b'{"host":"a","pid":1e99}'])
def test_a_lease_that_cannot_be_read_is_nobodys(tmp_path, monkeypatch, content):
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with JobDirectory(str(tmp_path / "out"), make=True) as directory:
        (tmp_path / "out.job" / "lease").write_bytes(content)
        with Lease(directory):
            pass


@pytest.mark.parametrize("way", ["locked", "unlocked"])
def test_one_that_is_dying_is_waited_for(tmp_path, monkeypatch, hold, way):
    first = hold(way)
    if way == "unlocked":
        monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(lease, "DYING_SECONDS", 60.0)
    threading.Timer(0.2, first.kill).start()
    with JobDirectory(str(tmp_path / "out")) as directory, Lease(directory):
        assert lease.holder_of(directory.root.read("lease", 4096)).pid == os.getpid()


def test_a_lock_that_fails_is_named(tmp_path, monkeypatch):
    def fail(fd, how):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", fail)
    with (
        JobDirectory(str(tmp_path / "out"), make=True) as directory,
        pytest.raises(ResourceError, match="lease: cannot lock"),
    ):
        Lease(directory).__enter__()


def test_two_processes_at_a_time(place):
    """Started together: one finishes, the other exits with 4 and says who is at work; or it came when all was done."""
    both = [place.start(engine="inline", knobs={"slow": 0.03}) for _ in range(2)]
    ends = [(process.wait(60), *process.communicate()) for process in both]
    assert sorted(code for code, _, _ in ends) in ([0, 4], [0, 0]), ends
    for process, (code, _, said) in zip(both, ends, strict=True):
        other = both[0] if process is both[1] else both[1]
        assert code == 0 or f"process {other.pid} on {os.uname().nodename}" in said or "just begun" in said
    place.check()


def test_two_runs_at_a_time(place):
    """Twenty times two of them: each shard is run once, and who came second says so."""
    for count in range(40, 60):
        place.fill(count)
        ends, together = [], threading.Barrier(2)

        def attempt(ends=ends, together=together):
            together.wait()
            try:
                ends.append(run(place.task(slow=0.001), place.output, Inline(), Settings(restart=True)).computed)
            except ResourceError as error:
                ends.append(str(error))

        both = [threading.Thread(target=attempt) for _ in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        shards = -(-count // 4)
        refused = [end for end in ends if end != shards]
        assert len(refused) < 2 and all("another run works on this job: " in end for end in refused), ends
        place.check()


@pytest.mark.parametrize("way", ["locked", "unlocked"])
def test_the_first_leaves_nothing_behind(place, monkeypatch, way):
    """It had no shard yet: its directory goes, and the second, which has waited for the lease in it, makes another."""
    monkeypatch.setattr(lease, "DYING_SECONDS", 60.0)
    if way == "unlocked":
        monkeypatch.setattr(fcntl, "flock", no_locks)
    ends = []
    second = threading.Thread(target=lambda: ends.append(run(place.task(), place.output, Inline()).computed))
    with JobDirectory(place.output, make=True) as directory, Lease(directory):
        second.start()
        time.sleep(0.3)
        assert ends == []
        directory.remove()
        assert not os.path.exists(f"{place.output}.job")
    second.join()
    assert ends == [10]
    place.check()


@pytest.mark.parametrize("after", ["job", "shards", "logs", "lease"])
def test_the_directory_goes_as_it_is_made(place, monkeypatch, after):
    """Removed by another run after each of the steps of a run that begins."""
    times = []

    def once(name, call):
        def wrapped(path, *args, **named):
            done = call(path, *args, **named)
            if not times and os.path.basename(path) == (f"{os.path.basename(place.output)}.job", after)[after != "job"]:
                times.append(name)
                shutil.rmtree(f"{place.output}.job")
            return done

        return wrapped

    name = "open" if after == "lease" else "mkdir"
    with monkeypatch.context() as patch:
        patch.setattr(os, name, once(name, getattr(os, name)))
        run(place.task(), place.output, Inline())
    assert times == [name]
    place.check()


def test_a_directory_that_goes_each_time(place, monkeypatch):
    monkeypatch.setattr(JobDirectory, "is_there", lambda self: False)
    with pytest.raises(ResourceError, match="another run has removed it meanwhile") as caught:
        run(place.task(), place.output, Inline())
    assert caught.value.exit_code == 4


def test_one_fails_at_once_and_one_does_not(place, monkeypatch):
    """Fifty times, at the same time: the failure of the one is not that of the other."""
    monkeypatch.setattr(lease, "DYING_SECONDS", 60.0)
    for _ in range(50):
        ends, together = [], threading.Barrier(2)

        def attempt(task, ends=ends, together=together):
            together.wait()
            try:
                ends.append(run(task, place.output, Inline()).records)
            except InputError:
                ends.append("bad")

        tasks = [place.task(trouble={0: ("error", 99)}), place.task()]
        both = [threading.Thread(target=attempt, args=(task,)) for task in tasks]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert sorted(map(str, ends)) in (["40", "bad"], ["40", "40"]), ends
        place.check()
        shutil.rmtree(f"{place.output}.job")
        os.unlink(place.output)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o600), (0o002, 0o660), (0o077, 0o600), (0o000, 0o666)])
def test_who_may_only_read_cannot_hold_a_lease(place, mask, mode):
    """A lock needs no right to write: any user could keep a job from going on. An older lease is closed, too."""
    before = os.umask(mask)
    try:
        with JobDirectory(place.output, make=True) as directory:
            path = directory.root.where(LEASE)
            for _ in range(2):
                with Lease(directory):
                    assert stat.S_IMODE(os.stat(path).st_mode) == mode
                if mode == 0o600:
                    os.chmod(path, 0o644)
    finally:
        os.umask(before)
