"""The same call resumes, and does nothing twice; whatever the system refuses, the rerun gives the same bytes."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import toy_jobs
from faults import Faults
from tilewright.errors import InputError, Interrupted, ResourceError, UsageError
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.engines.local import Local
from tilewright.runtime.jobs import run as run_module
from tilewright.runtime.jobs import stop as stop_module
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.status import status
from tilewright.runtime.jobs.task import Watch


class Spoilsport(Inline):
    """Ends with an error after so many shards."""

    def __init__(self, shards):
        super().__init__()
        self.shards = shards

    def run(self, job):
        job.todo = job.todo[: self.shards]
        super().run(job)
        raise Interrupted("the sport is spoilt")


def test_a_run(place):
    seen = []
    report = run(place.task(), place.output, Inline(), watch=toy_jobs.Seen(seen.append))
    place.check()
    assert (report.records, report.errors, report.shards, report.computed) == (40, 0, 10, 10)
    assert {"plan", "run", "merge", "total"} == set(report.seconds) and report.seconds["total"] >= report.seconds["run"]
    assert [record.shard for record in seen] == list(range(10))


@pytest.mark.parametrize("size", [1, 3, 7, 39, 40, 41])
def test_shards_change_no_bits(place, size):
    assert run(place.task(), place.output, Inline(), Settings(shard_size=size)).shards == -(-40 // size)
    place.check()


def test_more_shards_than_can_be(place, monkeypatch):
    monkeypatch.setattr(run_module, "MOST_SHARDS", 39)
    with pytest.raises(UsageError, match="would become 40 shards; at most 39"):
        run(place.task(), place.output, Inline(), Settings(shard_size=1))
    assert not os.path.exists(f"{place.output}.job")
    assert run(place.task(), place.output, Inline(), Settings(shard_size=2)).shards == 20


def test_an_empty_input(place):
    place.fill(0)
    assert run(place.task(), place.output, Inline()).records == 0
    place.check(b"")


def test_a_finished_job_is_left_alone(place):
    run(place.task(), place.output, Inline())
    before = {path: path.stat().st_mtime_ns for path in place.path.rglob("*") if path.name != "lease"}
    report = run(place.task(), place.output, Inline(), Settings(shard_size=7))
    assert report.computed == 0 and report.records == 40
    assert {path: path.stat().st_mtime_ns for path in place.path.rglob("*") if path.name != "lease"} == before


def test_what_was_done_is_not_done_again(place):
    with pytest.raises(Interrupted):
        run(place.task(), place.output, Spoilsport(6))
    assert len(place.parts()) == 6 and not os.path.exists(place.output)
    assert run(place.task(), place.output, Inline(), Settings(shard_size=7)).computed == 4  # the cut stays
    assert [shard for shard, _, _ in place.begun()] == list(range(10))
    place.check()


def test_an_output_that_cannot_be_is_found_before_the_work(place):
    os.mkdir(place.output)
    with pytest.raises(ResourceError, match="the output is a directory"):
        run(place.task(), place.output, Inline())
    assert place.begun() == [] and not os.path.exists(f"{place.output}.job")
    with pytest.raises(ResourceError, match="there is no directory"):
        run(place.task(), f"{place.output}/gone/out", Inline())


def test_a_signal_while_a_finished_job_is_checked(place, monkeypatch):
    run(place.task(), place.output, Inline())

    def check(self):
        raise Interrupted("as it is read")

    monkeypatch.setattr(stop_module.Stop, "check", check)
    with pytest.raises(Interrupted, match="as it is read"):
        run(place.task(), place.output, Inline())


def test_a_changed_field_is_named(place):
    with pytest.raises(Interrupted):
        run(place.task(), place.output, Spoilsport(6))
    changed = toy_jobs.Squares(place.input, seed=5)
    with pytest.raises(UsageError, match="seed was 0 and is 5") as caught:
        run(changed, place.output, Inline())
    assert caught.value.exit_code == 2 and len(place.parts()) == 6
    place.fill(44)
    with pytest.raises(UsageError, match="the size of the input was 160 bytes and is 176 bytes"):
        run(place.task(), place.output, Inline())
    assert run(place.task(), place.output, Inline(), Settings(restart=True)).computed == 11
    place.check()


@pytest.mark.parametrize("how", ["changed", "shrunk"])
def test_an_input_that_changes_meanwhile(place, how):
    Path(place.output).write_bytes(b"earlier")

    def meddle(record):
        if record.shard == 3 and how == "changed":
            with open(place.input, "r+b") as file:
                file.write(b"x")
        elif record.shard == 3:
            os.truncate(place.input, 100)

    message = r"input\.changed was" if how == "changed" else r"the input shrank while it was read|input\.changed was"
    with pytest.raises(InputError, match=message) as caught:
        run(place.task(), place.output, Inline(), watch=toy_jobs.Seen(meddle))
    assert caught.value.exit_code == 3 and Path(place.output).read_bytes() == b"earlier"
    with pytest.raises(UsageError, match=r"inputs: the (input has other content|size of the input was)"):
        run(place.task(), place.output, Inline())


@pytest.mark.parametrize(
    ("number", "lasting"),
    [(errno.ENOSPC, False), (errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False),
     pytest.param(errno.EDQUOT, False, marks=pytest.mark.long), pytest.param(errno.EIO, True, marks=pytest.mark.long)],
    ids=lambda value: errno.errorcode[value] if type(value) is int else str(value),
)  # fmt: skip
def test_every_call_of_the_system_fails_once(place, monkeypatch, number, lasting):
    """For every N: exit code 4 with path and reason, or the job did without; the earlier output stays; the rerun."""
    task = toy_jobs.Upper(place.input)
    Path(place.input).write_bytes(b"line\nbad\n" * 20)
    with monkeypatch.context() as patch:
        total = Faults(patch, 0, number)
        run(task, place.output, Inline())
    expected = Path(place.output).read_bytes()
    assert total.made > 60
    reason, failed = os.strerror(number)[1:], 0
    for nth in range(1, total.made + 1):
        shutil.rmtree(f"{place.output}.job")
        Path(place.output).write_bytes(b"earlier")
        with monkeypatch.context() as patch:
            Faults(patch, nth, number, lasting)
            try:
                run(task, place.output, Inline())
            except ResourceError as error:
                failed += 1
                assert error.exit_code == 4 and error.path and reason in str(error), (nth, error)
                at_end = "flush its directory" in str(error) or Path(place.output).read_bytes() == expected
                assert at_end or Path(place.output).read_bytes() == b"earlier", nth
        run(task, place.output, Inline())
        place.check(expected)
    assert failed > total.made - 12  # reading closes files, too, and a lease that cannot be emptied is no error


FULL = """
import os, sys
sys.path.insert(0, sys.argv[1])
import toy_jobs
from tilewright.errors import ResourceError
from tilewright.runtime.engines.local import Local
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings
os.makedirs("disk", exist_ok=True)
assert os.system("mount -t tmpfs -o size=8m none disk") == 0
with open("disk/ballast", "wb") as file:
    file.write(bytes(int(sys.argv[2])))
with open("disk/out", "wb") as file:
    file.write(b"earlier")
task = toy_jobs.Upper(os.path.abspath("in"))
try:
    run(task, "disk/out", Local(2), Settings(shard_size=20_000))
    sys.exit("the disk was not full")
except ResourceError as error:
    assert "disk/out" in str(error) and ("o space left" in str(error) or "its disk has" in str(error)), error
    assert open("disk/out", "rb").read() == b"earlier"
os.unlink("disk/ballast")
run(task, "disk/out", Local(2), Settings(shard_size=20_000))
lines = b"".join(b"%d " % n + b"L" * 1000 + b"\\n" for n in range(1, 501))
print(open("disk/out", "rb").read() == b"# 500 lines, 0 bad\\n" + lines)
print([name for _, _, names in os.walk("disk") for name in names if name.endswith(".tmp")])
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("left", [100_000, 600_000, 1_000_000])
def test_a_real_full_disk(tmp_path, left):
    """8 MiB, of which so many bytes are left: full at the first shards, later, or as the output is merged."""
    (tmp_path / "in").write_bytes((b"l" * 1000 + b"\n") * 500)
    command = ["unshare", "-rm", sys.executable, "-c", FULL, str(Path(toy_jobs.__file__).parent), str((8 << 20) - left)]
    probe = subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "none", tmp_path], capture_output=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"no mounts here: {probe.stderr.decode().strip()}")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "True\n[]\n", done.stderr + done.stdout


CRASHES = """
import os, shutil, sys
sys.path.insert(0, sys.argv[1])
import toy_jobs
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.jobs import directory, durable
from tilewright.runtime.jobs.run import run
directory.SYNC_SECONDS = 0.0
os.fsync = os.fstat
count = 0
for name in ("manifest.json", "00000.part", "00005.part", "00009.part", "report.json"):
    for label in durable.STEPS:
        child = os.fork()
        if not child:
            task = toy_jobs.Squares("in", knobs=toy_jobs.Knobs(die_at=(label, name)))
            task.knobs.enter()
            run(task, "out", Inline())
            os._exit(0)
        assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 77, (name, label)
        assert not os.path.exists("out") or name == "report.json"
        left = [part for part in os.listdir("out.job/shards") if part.endswith(".part")]
        report = run(toy_jobs.Squares("in"), "out", Inline())
        assert report.computed == 10 - len(left), (name, label)
        assert open("out", "rb").read() == open("expected", "rb").read(), (name, label)
        assert not [n for _, _, names in os.walk(".") for n in names if n.endswith(".tmp")], (name, label)
        shutil.rmtree("out.job")
        os.unlink("out")
        count += 1
print(count)
"""


@pytest.mark.filterwarnings("ignore")
def test_the_end_at_every_step(place):
    Path(place.path, "expected").write_bytes(place.squares)
    command = [sys.executable, "-W", "ignore", "-c", CRASHES, str(Path(toy_jobs.__file__).parent)]
    done = subprocess.run(command, cwd=place.path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "35\n", done.stderr


def test_a_signal_between_two_shards(place):
    """Outside a worker, too: what is whole is kept."""
    Path(place.output).write_bytes(b"earlier")

    def interrupt(record):
        if record.shard == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="stopped by SIGTERM: 4 of 10 shards are kept") as caught:
        run(place.task(), place.output, Inline(), watch=toy_jobs.Seen(interrupt))
    assert caught.value.exit_code == 75 and signal.getsignal(signal.SIGTERM) is before
    assert len(place.parts()) == 4 and Path(place.output).read_bytes() == b"earlier"
    assert run(place.task(), place.output, Inline()).computed == 6
    place.check()


class Begun(Watch):
    """Asks the job to stop as it begins."""

    def begin(self, cut):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_before_anything_is_whole(place):
    """That is what is said, and `status` agrees; with --restart, what was done before is kept, and that is said."""
    with pytest.raises(Interrupted, match="SIGTERM: nothing was whole yet, so nothing was kept"):
        run(place.task(), place.output, Inline(), watch=Begun())
    with pytest.raises(UsageError, match=r"there is no job for this output: it has no such directory"):
        status(place.output)
    run(place.task(), place.output, Inline())
    with pytest.raises(Interrupted, match="nothing of the new run was whole yet, and what was done before is kept"):
        run(place.task(), place.output, Inline(), Settings(restart=True), Begun())
    place.check()
    with pytest.raises(Interrupted, match="was being checked, and is as it was"):
        run(place.task(), place.output, Inline(), watch=Begun())


@pytest.mark.parametrize("engine", [Inline, Local], ids=["inline", "local"])
def test_a_signal_during_the_last_shard(place, engine):
    """The output takes the rest of the grace time, and the job ends as any other."""
    watch = toy_jobs.Seen(lambda record: record.shard == 9 and os.kill(os.getpid(), signal.SIGTERM))
    assert run(place.task(), place.output, engine(), watch=watch).computed == 10
    place.check()


def test_a_signal_during_the_merge(place):
    """It ends with the grace time, and not before."""
    task = place.task()

    def header(totals):
        os.kill(os.getpid(), signal.SIGUSR1)
        return b""

    task.header = header
    with pytest.raises(Interrupted, match="SIGUSR1: every shard is kept, and the output not written"):
        run(task, place.output, Inline(), Settings(grace=0))
    assert not os.path.exists(place.output) and len(place.parts()) == 10
    assert run(task, place.output, Inline()).computed == 0
    place.check()


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_module.stopping() as stop:
            signal.raise_signal(signal.SIGHUP)
        assert not stop.name
    finally:
        signal.signal(signal.SIGHUP, before)


def test_many_shards_cost_little(place):
    """Less than 5 ms of CPU time a shard outside the computation, on a loaded machine too; no descriptor, no thread and
    less than 1 KiB a shard is kept."""
    place.fill(2000)
    used = []

    def look(record):
        if record.shard in (199, 999):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            used.append(
                (pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), threading.active_count())
            )

    begin = time.process_time()
    report = run(toy_jobs.Squares(place.input), place.output, Inline(), Settings(shard_size=2), toy_jobs.Seen(look))
    assert report.shards == 1000 and time.process_time() - begin < 5.0
    assert used[1][0] - used[0][0] < 800 << 10 and used[1][1:] == used[0][1:], used
    place.check()


def test_an_input_that_is_touched_meanwhile(place):
    """The remedy must not throw the shards away."""

    def touch(record):
        if record.shard == 3:
            os.utime(place.input, (1, 1))

    with pytest.raises(InputError, match=r"run the same command again: it keeps the shards") as caught:
        run(place.task(), place.output, Inline(), watch=toy_jobs.Seen(touch))
    assert "--restart" not in str(caught.value)
    assert run(place.task(), place.output, Inline()).computed == 6
    place.check()
