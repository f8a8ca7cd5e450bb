"""Ranks: the same bytes on any number of them, and no way to hang the job."""

import importlib.util
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.engines.mpi import SIZES, check_size
from tilewright.runtime.jobs import durable
from tilewright.runtime.jobs.run import run

MPIEXEC = next((path for path in (Path(sys.executable).with_name("mpiexec"), shutil.which("mpiexec")) if path), None)
missing = not MPIEXEC or not Path(MPIEXEC).exists() or not importlib.util.find_spec("mpi4py")
pytestmark = pytest.mark.skipif(missing, reason="mpi4py or mpiexec is not installed: pip install mpi4py mpich")


@pytest.fixture
def ranks(place, kill_group):
    started = []

    def call(count, **said):
        started.append(place.start(before=[str(MPIEXEC), "-n", str(count)], engine="mpi", **said))
        return started[-1]

    yield call
    for process in started:
        kill_group(process)


def finish(process):
    """(exit code, what was said, seconds) of mpiexec, which says some of it on stdout; reports are left out."""
    begin = time.monotonic()
    said, errors = process.communicate(timeout=60)
    said = "".join(line for line in said.splitlines(keepends=True) if not line.startswith('{"computed"'))
    return process.returncode, errors + said, time.monotonic() - begin


def wait_for_witness(place):
    log = Path(f"{place.output}.job/logs/ranks.log")
    until = time.monotonic() + 10
    while not (log.exists() and log.stat().st_size):
        assert time.monotonic() < until
        time.sleep(0.01)
    return log.read_text()


def resume(place):
    """By another engine, which is quicker to start, as soon as all ranks are gone: mpiexec does not wait for them."""
    until = time.monotonic() + 10
    while any(durable.alive(pid) for _, pid, _ in place.begun()):
        assert time.monotonic() < until
        time.sleep(0.01)
    run(place.task(), place.output, Inline())
    place.check()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_any_number_of_ranks(place, ranks, count):
    code, errors, _ = finish(ranks(count, knobs={"slow": 0.01}))
    assert code == 0 and errors == "", errors
    place.check()
    begun = place.begun()
    assert sorted(shard for shard, _, _ in begun) == list(range(10))
    assert {rank for _, _, rank in begun} == set(range(count))


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
        ("hang", 30, 5, "rank {rank} gave no sign of life for 2 s"),
        ("stop", 2, 5, "rank {rank} gave no sign of life for 2 s"),
        ("stop", 30, 5, "rank {rank} gave no sign of life for 2 s"),
        ("kill", 2, 9, "rank {rank} on {host}: process {pid} was ended from outside"),
        ("kill", 30, 9, "rank {rank} on {host}: process {pid} was ended from outside"),
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
    resume(place)


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
    os.utime(place.input, (1, 1))
    code, errors, _ = finish(ranks(3))
    assert code == 2 and "input.changed was" in errors and errors.count("rank 0 on ") == 1, errors


def test_one_rank_is_ten_times_slower(place, ranks):
    """Ranks draw shards one by one: the slow one takes fewer."""
    place.fill(80)
    code, errors, _ = finish(ranks(3, knobs={"slow": 0.02, "slowest": 1}, options={"shard_size": 2}))
    assert code == 0, errors
    place.check()
    assert 1 <= sum(rank == 1 for _, _, rank in place.begun()) <= 6


@pytest.mark.parametrize("name", SIZES)
def test_copies_of_rank_0_of_1(place, monkeypatch, name):
    monkeypatch.setenv(name, "4")
    check_size(4)
    with pytest.raises(UsageError, match=rf"started 4 processes \({name}\) and MPI sees one"):
        check_size(1)
    monkeypatch.setenv(name, "1")
    check_size(1)


def test_copies_are_refused_before_anything_is_written(place, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    code, errors, _ = finish(place.start(engine="mpi"))
    assert code == 2 and "each would do the whole job" in errors
    assert sorted(os.listdir(place.path)) == ["in", "notes"]


def test_without_mpi4py(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    from tilewright.runtime.engines.mpi import Mpi

    with pytest.raises(ResourceError, match=r"MPI cannot be used: .*pip install 'tilewright\[mpi\]'"):
        run(place.task(), place.output, Mpi())
    assert not os.path.exists(f"{place.output}.job")
