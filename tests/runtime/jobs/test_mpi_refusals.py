"""A refusal reaches the user whenever the launcher reads stderr: all ranks exit in order, and none calls MPI_Abort."""

import importlib.util
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright.errors import InputError, InternalError, UsageError
from tilewright.runtime.engines import ranks as messages
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.engines.mpi import Mpi
from tilewright.runtime.jobs.run import run

MPIEXEC = Path(sys.executable).with_name("mpiexec")
HAS_MPI = MPIEXEC.exists() and importlib.util.find_spec("mpi4py")
HOST = os.uname().nodename
WAITING = """
import os, signal
from tilewright.runtime.engines import mpi

class Comm:
    size, polls = 2, 0

    def Ibarrier(self):
        return self

    def Test(self):
        self.polls += 1
        os.kill(os.getpid(), signal.SIGINT)
        return self.polls > 3

signal.signal(signal.SIGINT, signal.default_int_handler)
mpi._exit_together(Comm())
"""  # a rank that waits for the others when it exits, and is interrupted
ABORTED = 77  # exit code of a rank that calls MPI_Abort in `toy_jobs.orderly_main`


@pytest.fixture
def ranks(place):
    """Runs a job on ranks; (exit code, stderr, what the ranks noted in order: "wrote" on stderr, "exits")."""

    def call(count, **said):
        python, flag, code, given = place.command(engine="mpi", **said)
        code = code.replace("toy_jobs.main()", f"toy_jobs.orderly_main({place.notes!r}, {ABORTED})")
        command = [str(MPIEXEC), "-n", str(count), python, flag, code, given]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        noted = Path(place.notes, "order")
        return done.returncode, done.stderr, noted.read_text().split() if noted.exists() else []

    return call


@pytest.mark.skipif(not HAS_MPI, reason="mpi4py or mpiexec is not installed: pip install mpi4py mpich")
@pytest.mark.parametrize("count", [1, 3])
def test_rank_0_writes_its_refusal_before_any_rank_exits(place, ranks, count):
    """Some launchers kill all ranks when one of them exits with an error."""
    run(place.task(), place.output, Inline())
    place.fill(44)
    code, errors, noted = ranks(count)
    assert code == 2 and "the size of the input was" in errors, errors
    assert (f"(rank 0 on {HOST})" in errors) == (count > 1), errors
    assert noted == ["wrote", *["exits"] * count]


@pytest.mark.skipif(not HAS_MPI, reason="mpi4py or mpiexec is not installed: pip install mpi4py mpich")
@pytest.mark.parametrize("record", [2, 30])
def test_rank_0_writes_the_refusal_of_any_rank(place, ranks, record):
    """It names the rank. The other ranks stop within their shards, and the next run goes on."""
    knobs = {"trouble": {record: ["error", 1]}, "slow": 0.05}
    code, errors, noted = ranks(3, knobs=knobs, options={"shard_size": 10})
    assert code == 3, errors
    rank = next(rank for shard, _, rank in place.begun() if shard == record // 10)
    assert errors == f"in.bin, record {record}: is not to my taste (rank {rank} on {HOST})\n"
    assert noted == ["wrote", "exits", "exits", "exits"]
    assert place.temporary() == []
    assert Path(f"{place.output}.job/logs/ranks.log").read_text().count("is not to my taste") == 1
    run(place.task(), place.output, Inline())
    place.check()


@pytest.mark.skipif(not HAS_MPI, reason="mpi4py or mpiexec is not installed: pip install mpi4py mpich")
def test_too_many_failed_records(place, ranks):
    """The thread of rank 0 that handles messages finds it. The message is also in the log."""
    Path(place.input).write_bytes(b"good\nbad\n" * 100)
    code, errors, noted = ranks(3, task="upper", options={"max_errors": 3})
    assert code == 5 and "bad and 3 are allowed" in errors and f"(rank 0 on {HOST})" in errors, errors
    assert Path(f"{place.output}.job/logs/ranks.log").read_text() == errors
    assert noted == ["wrote", "exits", "exits", "exits"]


class Letters:
    """A communicator as rank `rank` of two sees it: `arriving` are the other rank's messages, after the first is sent.

    answers: a message for each that is sent.
    """

    size = 2

    def __init__(self, rank, answers):
        self.rank, self.answers, self.arriving, self.sent = rank, answers, [], []

    def isend(self, message, dest, tag):
        self.sent.append(message)
        self.arriving += self.answers(message)
        return SimpleNamespace(Test=lambda: True, Wait=lambda: None)

    def iprobe(self, source=None, tag=None):
        return bool(self.arriving)

    def recv(self, buf=None, source=None, tag=None):
        return self.arriving.pop(0)


def test_a_rank_that_fails_before_rank_0_has_a_job():
    """The other ranks are told at once, and rank 0 raises the error when it can."""
    comm = Letters(0, lambda message: [(1, messages.Bye())])
    comm.arriving.append((1, messages.Failed(UsageError("no such label", path="m"), "node2", True)))
    counter = messages.Counter(comm)
    assert counter.end(2) and comm.sent == [messages.Ended(2)]
    for raises in (counter.check, counter.given, counter.pulse):
        with pytest.raises(UsageError, match=r"^m: no such label \(rank 1 on node2\)$"):
            raises()


def test_a_rank_that_fails_waits_for_its_answer():
    """Whatever arrives before."""
    error = InputError("is not to my taste")
    before = [messages.Hello(), messages.Begin(None, b"")]
    link = messages.Link(Letters(1, lambda message: [*before, messages.Ended(3)]), messages.Stop(), 60.0)
    with pytest.raises(messages.Ending) as caught:
        link.fail(error, is_logged=True)
    assert caught.value.code == 3
    done = messages.Link(Letters(1, lambda message: [messages.Finished(None)]), messages.Stop(), 60.0)
    done.fail(error, is_logged=True)  # rank 0 has finished the job, so this rank stops all ranks


def test_a_rank_that_fails_after_the_last_message_does_not_wait(monkeypatch):
    """Rank 0 sends nothing any more."""
    comm = Letters(1, lambda message: [])
    comm.arriving.append(messages.Finished(None))
    link = messages.Link(comm, messages.Stop(), 60.0)
    assert isinstance(link.receive(), messages.Finished)
    monkeypatch.setattr(messages.time, "sleep", lambda seconds: pytest.fail("waits"))
    link.fail(InputError("is not to my taste"), is_logged=True)
    assert not comm.sent


def test_a_rank_that_works_hears_that_the_job_ends(monkeypatch):
    """At a heartbeat. What else has arrived is received later."""
    monkeypatch.setattr(messages, "ALIVE_SECONDS", 0.0)
    comm = Letters(1, lambda message: [])
    link = messages.Link(comm, messages.Stop(), 60.0)
    comm.arriving.append(begin := messages.Begin(None, b""))
    link.pulse(1)
    assert link.receive() is begin
    comm.arriving.append(messages.Ended(5))
    with pytest.raises(messages.Ending):
        link.pulse(2)
    for again in (link.listen, link.receive, lambda: link.fail(InternalError("of the clean-up"), is_logged=True)):
        with pytest.raises(messages.Ending) as caught:
            again()
        assert caught.value.code == 5
    assert not any(isinstance(message, messages.Failed) for _, message in comm.sent)


def test_rank_0_waits_only_so_long(monkeypatch):
    """A rank in a long record does not answer; then MPI_Abort stops it."""
    monkeypatch.setattr(messages, "END_SECONDS", 0.05)
    comm = Letters(0, lambda message: [])
    counter = messages.Counter(comm)
    assert not counter.end(2)
    comm.arriving.append((1, messages.Bye()))
    counter.join(60)
    assert not counter.is_alive()


@pytest.fixture
def leading(monkeypatch):
    """Makes an engine of rank 0 from a communicator. leading.exits: names of what runs at the exit of the process."""

    def call(comm):
        engine = Mpi()
        engine._comm, engine._hooks = comm, (sys.excepthook, threading.excepthook)
        engine._witness = SimpleNamespace(tell=lambda **what: None, close=lambda: None, record=None)
        engine._staging = SimpleNamespace(home="", is_sending=False, close=lambda: None)
        engine._counter = messages.Counter(comm)
        return engine

    call.exits = []
    monkeypatch.setattr("tilewright.runtime.engines.mpi._ended", False)
    monkeypatch.setattr("atexit.register", lambda function, *given: call.exits.append(function.__name__))
    return call


def answering(message):
    """The other rank's answer to each message: `Bye` to the last one."""
    return [(1, messages.Bye())] if isinstance(message, messages.Ended | messages.Finished) else []


def until_failed(counter):
    """Wait until rank 0 knows that another rank failed."""
    until = time.monotonic() + 60
    while not counter.failed:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_a_rank_fails_before_the_first_shard(leading):
    """Then no job is announced, because nobody would receive it."""
    comm = Letters(0, answering)
    engine = leading(comm)
    comm.arriving.append((1, messages.Failed(UsageError("no such label"), "node2", True)))
    until_failed(engine._counter)
    job = object.__new__(messages.Job)  # has no field that could be read
    engine._counter.begin(job)
    engine._counter.close()
    assert comm.sent == [messages.Ended(2)] and isinstance(engine._counter.failed, UsageError)
    with pytest.raises(UsageError, match="no such label"):
        engine._lead(job, engine._counter)


def test_two_errors(leading):
    """Rank 0 raises the first error, with whose code the other ranks exit."""
    comm = Letters(0, answering)
    engine = leading(comm)
    comm.arriving.append((1, messages.Failed(UsageError("no such label"), "node2", True)))
    until_failed(engine._counter)
    own = InputError("is not to my taste")
    with pytest.raises(UsageError, match="no such label") as caught:
        engine.__exit__(InputError, own, None)
    assert comm.sent == [messages.Ended(caught.value.exit_code)] and caught.value.__cause__ is own


@pytest.mark.parametrize("is_own", [False, True])
def test_an_error_of_another_rank_leaves_the_deaths_of_this_shard(leading, monkeypatch, tmp_path, is_own):
    """Only an error of the shard itself clears the records that were doubted."""
    engine, error = leading(Letters(0, answering)), InputError("is not to my taste")
    engine._tally = SimpleNamespace(add=lambda directory, record: record)
    engine._counter.failed = None if is_own else error

    def fail(*given, **named):
        raise error

    monkeypatch.setattr("tilewright.runtime.engines.mpi.run_shard", fail)
    directory = SimpleNamespace(logs=SimpleNamespace(path=str(tmp_path)), shard=lambda *given, **named: None)
    with pytest.raises(InputError):
        engine._run(None, directory, SimpleNamespace(shard=3, alone=None, skip=(), doubted=True), None)
    assert (tmp_path / "deaths.jsonl").exists() == is_own
    engine._counter.end(3)


def test_a_rank_fails_after_the_last_shard(leading):
    """Such as one that was still loading its model. The others then wait for rank 0 when they exit."""
    comm = Letters(0, answering)
    engine = leading(comm)
    comm.arriving.append((1, messages.Failed(UsageError("no such label"), "node2", True)))
    until_failed(engine._counter)
    engine._counter.post(messages.Finished(None))  # as `tell`, which had seen no error yet
    with pytest.raises(UsageError, match=r"rank 1 on node2"):
        engine.__exit__(None, None, None)
    assert comm.sent == [messages.Ended(2)] and leading.exits == ["_meet"]


def test_rank_0_fails_after_it_has_told_the_others_that_the_job_is_finished(leading):
    """They exit without it, so it does not wait for them. If there are no others, it can run the next job."""
    comm = Letters(0, answering)
    engine = leading(comm)
    engine.tell(None)
    error = InputError("of the report")
    engine.__exit__(InputError, error, None)
    assert comm.sent == [messages.Finished(None)] and leading.exits == []
    alone = leading(SimpleNamespace(size=1, rank=0, iprobe=lambda **what: False))
    alone.__exit__(InputError, error, None)
    assert leading.exits == []


def test_no_job_after_an_error_in_the_same_process(leading):
    """The other ranks exit, so rank 0 would wait for them for ever."""
    engine = leading(Letters(0, answering))
    engine.__exit__(InputError, InputError("is not to my taste"), None)
    assert leading.exits == ["_meet"]
    with pytest.raises(UsageError, match="Start mpiexec again"), leading(Letters(0, answering)):
        pass


@pytest.mark.skipif(not HAS_MPI, reason="mpi4py or mpiexec is not installed: pip install mpi4py mpich")
def test_ctrl_c_at_the_exit():
    """A rank that waits for the others ignores it: rank 0 may still write its message."""
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
