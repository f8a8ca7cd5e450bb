"""The scripts of `tilewright slurm`, run by a real Slurm of three nodes on this machine: `make test-slurm`."""

import contextlib
import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

import tilewright
from slurm_cluster import MISSING, Cluster, run
from tilewright.cli import main
from tilewright.runtime.convert.models import init_dcgan

pytestmark = (
    pytest.mark.skipif(True, reason=f"{', '.join(MISSING)} not installed: apt-get install slurm-wlm munge")
    if MISSING
    else pytest.mark.long
)
IMAGES, SHARDS = 512, 64
DRAW = ("draw", "-p", "m", "-n", str(IMAGES), "-o", "out.npy", "--shard-size", str(IMAGES // SHARDS))
# By default MPICH 5.0.2 uses UCX, and then one start of four fails or hangs: it sends Slurm 4,096 bytes of memory,
# although UCX's address is shorter. Slurm accepts the message only if the bytes after the address compress well.
PMI2 = ("--launcher", "env MPIR_CVAR_CH4_NETMOD=ofi srun --mpi=pmi2")
HYDRA = ("--launcher", str(Path(sys.executable).with_name("mpiexec")))  # MPICH's own, which srun starts on each node
# Read by every Python that a job starts: a shard takes longer, and who runs it is noted.
SLOWLY = """
import os, sys, time

class Slowly:
    def find_spec(self, name, path=None, target=None):
        if name in ("tilewright.runtime.engines.worker", "tilewright.runtime.engines.mpi"):
            sys.meta_path.remove(self)
            from tilewright.runtime.jobs import task
            run_shard = task.run_shard

            def slowly(worker, directory, shard, beat, **more):
                begin = time.time()
                time.sleep(SECONDS)
                record = run_shard(worker, directory, shard, beat, **more)
                note(task_name(), os.getpid(), shard.number, begin, time.time())
                return record

            task.run_shard = slowly

def task_name():
    names = "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"
    return "_".join(os.environ[name] for name in names) if names[1] in os.environ else os.environ["SLURM_JOB_ID"]

def note(*what):
    fd = os.open("FOLDER/notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, (" ".join(map(str, what)) + "\\n").encode())
    os.close(fd)

if "SLURM_JOB_ID" in os.environ:
    sys.meta_path.insert(0, Slowly())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The output of one process, and its model."""
    folder = tmp_path_factory.mktemp("whole")
    init_dcgan(str(folder / "m"), 1, z_size=4, channels=(8, 4, 3))
    here = os.getcwd()
    os.chdir(folder)
    try:
        assert ended(*DRAW) == 0
    finally:
        os.chdir(here)
    return folder


def ended(*command):
    """The exit code of a command."""
    with pytest.raises(SystemExit) as found:
        main([*command])
    return found.value.code


class Note(NamedTuple):
    """A shard that was run. task: "NUMBER" of a job, or "NUMBER_TASK" of an array's task. begin, end: s since 1970."""

    task: str
    pid: int
    shard: int
    begin: float
    end: float


class Work:
    """A folder from which jobs are submitted. seconds: that a shard takes at least."""

    def __init__(self, folder, whole, cluster, monkeypatch):
        self.folder, self.cluster, self._whole = folder, cluster, whole
        os.symlink(whole / "m", folder / "m")
        monkeypatch.chdir(folder)
        paths = [str(folder), str(Path(tilewright.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
        for name in ("NUMBA_ENABLE_CUDASIM", "TRITON_INTERPRET"):
            monkeypatch.delenv(name, raising=False)

    def submit(self, capsys, *options, seconds=0.5):
        """Writes the script, and hands it to Slurm; the numbers of the jobs."""
        (self.folder / "sitecustomize.py").write_text(
            SLOWLY.replace("SECONDS", str(seconds)).replace("FOLDER", str(self.folder))
        )
        capsys.readouterr()
        code = ended("slurm", *options, "--script", "job.sh", "--submit", *DRAW)
        said = capsys.readouterr()
        assert code == 0, said
        return said.out.rpartition("Submitted: ")[2].strip().split(", ")

    def notes(self):
        """The shards that were run, in the order in which they were committed."""
        try:
            lines = (self.folder / "notes").read_text().splitlines()
        except FileNotFoundError:
            return []
        rows = [line.split() for line in lines]
        return [Note(task, int(pid), int(shard), float(begin), float(end)) for task, pid, shard, begin, end in rows]

    def wait_for_shard(self, which=lambda note: True):
        """The first note for which `which` is true."""
        self.cluster.wait(lambda: any(map(which, self.notes())), "a shard")
        return next(filter(which, self.notes()))

    def said(self):
        """What the jobs said."""
        return {path.name: path.read_text() for path in self.folder.glob("slurm-*.out")}

    def check(self):
        """The output has the bytes of one process."""
        assert (self.folder / "out.npy").exists(), self.said()
        assert sha256(self.folder / "out.npy") == sha256(self._whole / "out.npy")
        assert {note.shard for note in self.notes()} == set(range(SHARDS))


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def work(tmp_path, whole, cluster, monkeypatch):
    return Work(tmp_path, whole, cluster, monkeypatch)


def test_an_array_of_8_of_which_some_are_killed(work, cluster, capsys):
    """Slurm allows 4 tasks per array. Two tasks are killed, one is cancelled. The others do their work, and the last
    job has nothing left."""
    first, second, last = work.submit(capsys, "--array", "-n", "8")
    assert "--array=0-3 SCRIPT 4" in Path("job.sh").read_text()
    killed = {f"{first}_1": 1, f"{second}_0": 4, f"{first}_2": 2}  # parts
    for task, part in killed.items():
        work.wait_for_shard(lambda note, task=task: note.task == task)
        run("scancel", *(["--full", "--signal=KILL"] if part != 2 else []), task)
    states = cluster.wait_for(first, second, last)
    work.check()
    assert len(states) == 9 and dict.fromkeys(killed, "CANCELLED").items() <= states.items(), states
    assert list(states.values()).count("COMPLETED") == 6, states
    assert "All 64 shards were there" in work.said()[f"slurm-{last}.out"]
    notes = work.notes()
    mine = [note for note in notes if note.shard % 8 in killed.values()]
    helped = [note for note in mine if note.task not in killed]
    assert len(notes) <= SHARDS + len(killed) and len({note.shard for note in helped}) >= 1
    ran = len(notes) - len([note for note in notes if note.task not in killed])
    say(f"{[*killed]} were killed after {ran} shards; the others ran {len(helped)} of theirs;", states)


def test_no_more_tasks_than_the_throttle(work, cluster, capsys):
    """Also where there are several arrays."""
    first, second, last = work.submit(capsys, "--array", "-n", "6", "--throttle", "2", seconds=0.2)
    assert "--array=0-3%2 SCRIPT 0" in Path("job.sh").read_text()
    states = cluster.wait_for(first, second, last)
    work.check()
    assert {*states.values()} == {"COMPLETED"}, states
    notes = work.notes()
    for moment in (note.begin for note in notes):
        running = {note.task for note in notes if note.begin <= moment < note.end}
        assert len(running) <= 2, running
    assert "Part 5 of 6 has ended, 0 of 64 shards are new" in work.said()[f"slurm-{second}_1.out"]


@pytest.mark.parametrize("options", [("--array", "-n", "2"), ("-n", "2", *PMI2)], ids=["array", "mpi"])
def test_a_task_that_is_asked_to_stop_is_queued_again(work, cluster, capsys, options):
    """As before a time limit, and sooner: it saves its shard, and goes on later."""
    *numbers, last = work.submit(capsys, *options, "--grace", "30", seconds=0.3)
    asked = f"{numbers[0]}_0" if numbers else last
    work.wait_for_shard(lambda note: note.task == asked)
    run("scancel", "--batch", "--signal=USR1", asked)
    states = cluster.wait_for(*numbers, last)
    work.check()
    assert {*states.values()} == {"COMPLETED"}, states
    assert len(work.notes()) == SHARDS
    said = work.said()[f"slurm-{asked}.out"]
    assert "SIGUSR1: stopping" in said and "shards are kept" in said, said
    assert restarts(cluster, asked) == 1, said


def test_a_time_limit(work, cluster, capsys):
    """Of the shortest kind, a minute; Slurm may ask up to a minute before the time that it was told."""
    first, last = work.submit(capsys, "--array", "-n", "2", "--time", "1", "--grace", "10", seconds=2.5)
    states = cluster.wait_for(first, last)
    work.check()
    assert {*states.values()} == {"COMPLETED"}, states
    counts = [restarts(cluster, f"{first}_{task}") for task in range(2)]
    assert min(counts) >= 1
    say(f"restarts by the time limit: {counts}", states)


def test_a_worker_that_is_killed_is_replaced(work, cluster, capsys):
    first, last = work.submit(capsys, "--array", "-n", "2", seconds=0.2)
    lost = work.wait_for_shard(lambda note: note.task == f"{first}_1")
    os.kill(lost.pid, signal.SIGKILL)
    states = cluster.wait_for(first, last)
    work.check()
    assert {*states.values()} == {"COMPLETED"}, states
    assert "replaced: SIGKILL" in work.said()[f"slurm-{first}_1.out"]


@pytest.mark.parametrize("launcher", [PMI2, HYDRA], ids=["pmi2", "mpiexec"])
def test_a_rank_that_is_killed(work, cluster, capsys, launcher):
    """MPI ends the step; the script queues itself again."""
    (number,) = work.submit(capsys, "-n", "3", *launcher, seconds=0.2)
    lost = work.wait_for_shard()
    os.kill(lost.pid, signal.SIGKILL)
    states = cluster.wait_for(number)
    work.check()
    assert [*states.values()] == ["COMPLETED"], states
    assert restarts(cluster, number) == 1


def test_a_node_that_is_lost(work, cluster, capsys):
    """Its daemon and all that it ran are gone: the other tasks do the work, Slurm starts the lost one again."""
    first, last = work.submit(capsys, "--array", "-n", "4", "--cores", "2", seconds=0.4)
    cluster.wait(lambda: nodes_of(cluster, first).get("n2"), "a task on n2")
    task = nodes_of(cluster, first)["n2"]
    lost = work.wait_for_shard(lambda note: note.task == task)
    cluster.kill("n2")
    for process in psutil.Process(lost.pid).parents():  # the job, its script and slurmstepd
        if "slurm" not in " ".join(process.cmdline()):
            break
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    os.kill(lost.pid, signal.SIGKILL)
    try:
        states = cluster.wait_for(first, last)
    finally:
        cluster.start_node("n2")
    work.check()
    assert {*states.values()} == {"COMPLETED"}, states


def nodes_of(cluster, number):
    """The tasks of an array that run, by their nodes."""
    jobs = [job for job in cluster.jobs() if job.get("ArrayJobId") == number and job["JobState"] == "RUNNING"]
    return {job["NodeList"]: f"{number}_{job['ArrayTaskId']}" for job in jobs}


def restarts(cluster, task):
    """How often a job or a task was started again."""
    number, _, index = task.partition("_")
    jobs = [
        job for job in cluster.jobs() if not index or (job.get("ArrayJobId"), job.get("ArrayTaskId")) == (number, index)
    ]
    return next(int(job["Restarts"]) for job in jobs if index or job["JobId"] == number)


def say(*what):
    """Printed by `make test-slurm`."""
    sys.stderr.write(f"\n{' '.join(map(str, what))}\n")
