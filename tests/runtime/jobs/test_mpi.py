"""Ranks: the same bytes on any number of them, and no way to hang the job."""

import importlib.util
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright import hardware
from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.runtime.engines import rank_devices as module
from tilewright.runtime.engines import ranks as messages
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.engines.rank_devices import gpu_names
from tilewright.runtime.engines.schedule import KILLS, TRIES
from tilewright.runtime.jobs import durable
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.status import status

MPIEXEC = next((path for path in (Path(sys.executable).with_name("mpiexec"), shutil.which("mpiexec")) if path), None)
missing = not MPIEXEC or not Path(MPIEXEC).exists() or not importlib.util.find_spec("mpi4py")
pytestmark = pytest.mark.skipif(missing, reason="mpi4py or mpiexec is not installed: pip install mpi4py mpich")
DOUBT = " (killed from outside: the next run tries it again)"


@pytest.fixture
def ranks(place, kill_group):
    started = []

    def call(count, **said):
        started.append(place.start(before=[str(MPIEXEC), "-n", str(count)], **{"engine": "mpi", **said}))
        return started[-1]

    yield call
    for process in started:
        kill_group(process)


def finish(process):
    """(exit code, what was said, seconds) of mpiexec, which says some of it on stdout; reports are left out."""
    begin = time.monotonic()
    said, errors = process.communicate(timeout=300)
    said = "".join(line for line in said.splitlines(keepends=True) if not line.startswith('{"computed"'))
    return process.returncode, errors + said, time.monotonic() - begin


def wait_for_witness(place):
    log = Path(f"{place.output}.job/logs/ranks.log")
    until = time.monotonic() + 300
    while not (log.exists() and log.stat().st_size):
        assert time.monotonic() < until
        time.sleep(0.01)
    return log.read_text()


def resume(place):
    """By another engine, which is quicker to start."""
    wait_until_gone(place)
    run(place.task(), place.output, Inline())
    place.check()


def wait_until_gone(place):
    """All ranks: mpiexec does not wait for them."""
    until = time.monotonic() + 300
    while any(durable.alive(pid) for _, pid, _ in place.begun()):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_any_number_of_ranks(place, ranks, count):
    code, errors, _ = finish(ranks(count, knobs={"slow": 0.01}))
    assert code == 0 and errors == "", errors
    place.check()
    begun = place.begun()
    assert sorted(shard for shard, _, _ in begun) == list(range(10))
    assert {rank for _, _, rank in begun} == set(range(count))
    found = status(place.output).workers
    assert [(one.worker, one.host) for one in found] == [(rank, os.uname().nodename) for rank in range(count)]
    assert all(one.device.startswith("core") == (count > 1) for one in found)
    assert sum(one.records for one in found) == 40


class Letters:
    """A communicator of two ranks as rank 0 sees it: rank 1's messages arrive one by one, after rank 0's first."""

    rank, size = 0, 2

    def __init__(self, *arriving):
        self.arriving, self.sent = list(arriving), []

    def isend(self, message, dest, tag):
        self.sent.append(message)
        return SimpleNamespace(Test=lambda: True, Wait=lambda: None)

    def iprobe(self, source=None, tag=None):
        return bool(self.sent and self.arriving)

    def recv(self, tag=None):
        return 1, self.arriving.pop(0)


def test_a_heartbeat_that_crosses_the_last_message_has_no_answer():
    """Nobody would receive the answer, and MPI_Finalize fails if a message is left over."""
    comm = Letters(messages.Hello(), messages.Bye())
    counter = messages.Counter(comm)
    last = messages.Finished(None)
    counter.post(last)
    counter.close()
    assert comm.sent == [last] and not comm.arriving


def test_a_resume(place, ranks):
    """Of what another engine began; and once more, when there is nothing to do."""
    with pytest.raises(InputError):
        run(place.task(trouble={21: ("error", 1)}), place.output, Inline())
    assert len(place.parts()) == 5
    for _ in range(2):
        code, errors, _ = finish(ranks(2))
        assert code == 0, errors
        place.check()
        assert len(place.begun()) == 11


@pytest.mark.parametrize(
    ("what", "record", "code", "message"),
    [
        ("raise", 2, 5, "rank {rank} on {host}: ZeroDivisionError('record {record}')"),
        ("raise", 30, 5, "rank {rank} on {host}: ZeroDivisionError('record {record}')"),
        ("error", 30, 3, "rank {rank} on {host}: in.bin, record {record}: is not to my taste"),
        ("hang", 30, 5, "rank {rank} gave no response for 2 s"),
        ("stop", 2, 5, "rank {rank} gave no response for 2 s"),
        ("stop", 30, 5, "rank {rank} gave no response for 2 s"),
        ("kill", 2, 9, "rank {rank} on {host}: process {pid} was killed or crashed"),
        ("kill", 30, 9, "rank {rank} on {host}: process {pid} was killed or crashed"),
    ],
)
def test_a_rank_that_fails_ends_the_job(place, ranks, what, record, code, message):
    """Whichever it is, 0 included: 10 s for a kill or an exception, the watchdog for a stop; named; and resumed."""
    process = ranks(3, knobs={"trouble": {record: [what, 1]}, "slow": 0.01}, options={"watchdog": 2.0})
    place.wait_for(1 + record // 4)
    ended, errors, seconds = finish(process)
    assert seconds < 10
    _, pid, rank = next(entry for entry in place.begun() if entry[0] == record // 4)
    assert ended == code, errors
    host = os.uname().nodename
    errors = wait_for_witness(place)  # on stderr, too, if mpiexec has not yet closed it
    assert message.format(rank=rank, host=host, pid=pid, record=record) in errors, errors
    assert not os.path.exists(place.output)
    blamed = [(death["shard"], death["record"]) for death in deaths(place)]
    nobody_knows = what == "stop" and rank == 0  # it is rank 0 who knows what the others run
    assert blamed == ([] if what == "error" or nobody_knows else [(record // 4, None)])
    resume(place)


def deaths(place):
    """What the job's directory says of shards that ended ranks."""
    path = Path(f"{place.output}.job/logs/deaths.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(
    ("what", "alone", "why"),
    [
        ("crash", TRIES, "SIGSEGV"),
        pytest.param("raise", TRIES, "ZeroDivisionError('record 6')", marks=pytest.mark.long),
        pytest.param("kill", KILLS, f"killed or crashed{DOUBT}", marks=pytest.mark.long),
    ],
)
def test_a_record_that_ends_its_rank_each_time(place, ranks, what, alone, why):
    """Two runs end at its shard, some at the record, which runs alone; the next reports it, the others are as ever.
    Kills from outside have to be more, and then a later run tries the record again."""
    for runs in range(1, TRIES + alone + 1):
        code, errors, _ = finish(ranks(2, knobs={"trouble": {6: [what, 9]}}))
        assert code in (5, signal.SIGKILL, signal.SIGSEGV), errors
        wait_until_gone(place)
        until = time.monotonic() + 300
        while len(deaths(place)) < runs:  # its witness outlives a rank
            assert time.monotonic() < until
            time.sleep(0.01)
    assert [(death["shard"], death["record"]) for death in deaths(place)] == [(1, None)] * TRIES + [(1, 6)] * alone
    code, errors, _ = finish(ranks(2, knobs={"trouble": {6: [what, 9]}}))
    assert code == 1, errors
    place.check(place.squares[:48] + place.squares[56:])
    error = json.loads(Path(f"{place.output}.job/errors/00001.jsonl").read_text())
    assert error == {"line": 6, "field": "", "message": f"it ended its worker: {why}"}
    code, errors, _ = finish(ranks(2))
    assert code == (0 if DOUBT in why else 1), errors
    place.check(place.squares if DOUBT in why else place.squares[:48] + place.squares[56:])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals(place, ranks, number):
    place.fill(400)
    process = ranks(2, knobs={"slow": 0.01}, options={"grace": 5.0})
    place.wait_for(8)
    process.send_signal(number)
    code, errors, seconds = finish(process)
    assert code == 75 and seconds < 5 and f"stopped by {number.name}" in wait_for_witness(place), errors
    assert len(place.begun()) == len(place.parts()) and place.temporary() == []
    resume(place)
    assert len(place.begun()) == 100


def test_a_signal_during_the_last_shards_leaves_time_for_the_output(place, ranks):
    process = ranks(2, knobs={"slow": 0.1})
    place.wait_for(10)
    process.send_signal(signal.SIGTERM)
    code, errors, _ = finish(process)
    assert code == 0, errors
    place.check()


def test_two_interrupts_of_a_terminal_blame_no_shard(place, ranks):
    """They reach the launcher, which kills at the second, and all ranks, which are each at a record and cannot say that
    they are to stop."""
    process = ranks(2, knobs={"slow": 3.0})
    place.wait_for(2)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
    _, errors, seconds = finish(process)  # hydra's exit code is 0 at times
    assert seconds < 2, errors
    wait_until_gone(place)
    time.sleep(0.3)  # a witness outlives its ranks
    assert deaths(place) == [] and not os.path.exists(place.output)
    resume(place)


@pytest.mark.parametrize("rank", [0, 1])
def test_two_interrupts_of_one_rank_end_all(place, ranks, rank):
    """At once, and nobody is said to have crashed."""
    process = ranks(2, knobs={"slow": 3.0})
    place.wait_for(2)
    pid = next(pid for _, pid, number in place.begun() if number == rank)
    for _ in range(2):
        os.kill(pid, signal.SIGINT)
        time.sleep(0.3)
    code, errors, seconds = finish(process)
    assert code == 130 and seconds < 2, errors
    wait_until_gone(place)
    time.sleep(0.3)
    log = Path(f"{place.output}.job/logs/ranks.log")
    assert deaths(place) == [] and not (log.exists() and "crashed" in log.read_text())
    resume(place)


def test_a_signal_to_one_rank_stops_all(place, ranks):
    place.fill(400)
    process = ranks(2, knobs={"slow": 0.01}, options={"grace": 5.0})
    place.wait_for(8)
    pid = next(pid for _, pid, rank in place.begun() if rank == 1)
    os.kill(pid, signal.SIGUSR1)
    code, errors, _ = finish(process)
    assert code == 75 and "stopped by SIGUSR1 of rank 1" in wait_for_witness(place), errors
    resume(place)


def test_the_grace_time_ends_a_long_shard(place, ranks):
    process = ranks(2, knobs={"trouble": {"6": ["hang", 1]}}, options={"grace": 1.0})
    place.wait_for(10)
    process.send_signal(signal.SIGTERM)
    code, errors, seconds = finish(process)
    assert code == 75 and seconds < 5, errors
    resume(place)


def test_a_refusal_ends_all_ranks(place, ranks):
    run(place.task(), place.output, Inline())
    place.fill(44)
    code, errors, _ = finish(ranks(3))
    assert code == 2 and "the size of the input was" in errors and errors.count("rank 0 on ") == 1, errors


def test_one_rank_is_ten_times_slower(place, ranks):
    """Ranks draw shards one by one: the slow one takes fewer."""
    place.fill(80)
    code, errors, _ = finish(ranks(3, knobs={"slow": 0.02, "slowest": 1}, options={"shard_size": 2}))
    assert code == 0, errors
    place.check()
    assert 1 <= sum(rank == 1 for _, _, rank in place.begun()) <= 6


def test_a_rank_a_gpu(place, ranks, monkeypatch):
    """In turn; the variable is there before anything of the job is made."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-3")
    code, errors, _ = finish(ranks(3, engine="mpi on GPUs", task="looking", options={"shard_size": 10}))
    assert code == 0, errors
    said = [json.loads(line) for line in Path(place.output).read_text().splitlines()]
    assert {(one["worker"], one["gpu"]) for one in said} <= {(0, "5"), (1, "GPU-3"), (2, "5")} and len(said) == 4


class Node:
    """Ranks of one node, of which this is one; they have these variables."""

    def __init__(self, rank, given):
        self.rank, self.given = rank, given

    def allgather(self, mine):
        return self.given

    def bcast(self, count):
        return count or 4


@pytest.mark.parametrize(
    ("rank", "given", "names"),
    [
        (0, ["2,3", "2,3"], ("2", "3")),
        (1, ["0", "1"], ("1",)),  # as batch systems do that give each task its own
        (0, [None, None], ("0", "1", "2", "3")),
        (1, [None, "7"], ("7",)),
    ],
)
def test_the_gpus_of_a_rank(monkeypatch, rank, given, names):
    monkeypatch.setattr(module, "_count_gpus", lambda: 4)
    hardware.gpus.cache_clear()
    assert gpu_names(Node(rank, given)) == names


def test_gpus_that_cannot_be_chosen_any_more(monkeypatch):
    """The driver reads the variable once."""
    hardware.gpus()
    assert gpu_names(Node(0, ["3"])) == ("3",)
    with pytest.raises(UsageError, match="used CUDA before its rank could choose one of 2 GPUs"):
        gpu_names(Node(0, ["3,4"]))


def test_gpus_are_counted_elsewhere():
    hardware.gpus.cache_clear()
    count = module._count_gpus()
    assert hardware.gpus.cache_info().currsize == 0 and count == len(hardware.gpus())


def test_copies_are_refused_before_anything_is_written(place, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    code, errors, _ = finish(place.start(engine="mpi"))
    assert code == 2 and "each would do the whole job" in errors
    assert sorted(os.listdir(place.path)) == ["in", "notes"]


def test_without_mpi4py(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    from tilewright.runtime.engines.mpi import Mpi

    with pytest.raises(ResourceError, match=r"MPI cannot be used: .*pip install .*\[mpi\]'"):
        run(place.task(), place.output, Mpi())
    assert not os.path.exists(f"{place.output}.job")


def test_a_trace_of_all_ranks(place, ranks, tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "out.json"
    code, errors, _ = finish(ranks(2, knobs={"slow": 0.01}, options={"trace": str(path)}))
    assert code == 0, errors
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"].split(" (")[0] for event in events if event["name"] == "process_name"}
    shards = {event["name"]: names[event["pid"]] for event in events if event["name"].startswith("shard ")}
    assert len(shards) == 10 and set(shards.values()) == {"worker 0", "worker 1"}
    assert set(names.values()) == {"lead", "worker 0", "worker 1"}
