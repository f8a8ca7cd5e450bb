"""Supervised workers: those that die, hang or trap are replaced; signals end the job in order, and nobody is left."""

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

import toy_jobs
from tilewright.errors import InputError, InternalError, UsageError
from tilewright.runtime.engines import local
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.engines.local import Local, facts_of, places
from tilewright.runtime.engines.schedule import KILLS, TRIES
from tilewright.runtime.jobs import run as run_module
from tilewright.runtime.jobs.merge import Report, verify
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.status import status
from tilewright.runtime.start import _outcome


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers(place, workers):
    report = run(place.task(), place.output, Local(workers))
    place.check()
    memory = report.facts.pop("worker_memory")
    assert report.facts == {"workers": workers, "replaced": 0} and 0 < memory["largest"] <= memory["sum"]
    assert {worker for _, _, worker in place.begun()} <= set(range(workers))
    assert sorted(shard for shard, _, _ in place.begun()) == list(range(10))


def test_a_worker_a_gpu(monkeypatch):
    assert [p.gpu for p in places(3, ("4", "GPU-5"))] == ["4", "GPU-5", "4"]
    monkeypatch.setattr(local.os, "sched_getaffinity", lambda pid: {1, 3, 5, 7, 9}, raising=False)
    monkeypatch.setattr(local.cgroup, "cores", lambda: None)
    assert [p.cores for p in places(2)] == [(1, 3), (5, 7, 9)]
    assert [p.cores for p in places(7)] == [(1,), (3,), (5,), (7,), (9,), (1,), (3,)]
    assert places(1)[0].cores is None
    monkeypatch.setattr(local.cgroup, "cores", lambda: 2.0)
    assert [p.cores for p in places(2)] == [(1,), (3,)]
    with pytest.raises(UsageError, match="workers is 0"):
        Local(0)


def test_a_worker_has_its_part_of_the_machine(place):
    """Its cores, its GPU's name, and the environment of who started it."""
    report = run(toy_jobs.Looking(place.input), place.output, Local(2, ("3", "1")), Settings(shard_size=20))
    cores = sorted(os.sched_getaffinity(0))
    assert report.records == 40
    for number, line in enumerate(Path(place.output).read_text().splitlines()):
        said = json.loads(line)
        assert said["gpu"] == ("3", "1")[said["worker"]], number
        assert set(said["cores"]) <= set(cores) and len(said["cores"]) <= max(len(cores) // 2 + 1, 1)


@pytest.mark.parametrize("what", ["exit", "kill", "stop", "hang", "raise"])
def test_a_worker_that_ends_is_replaced(place, what):
    report = run(place.task(trouble={6: (what, 1)}), place.output, Local(2), Settings(watchdog=1.0))
    place.check()
    why = {
        "exit": "exit code 3",
        "stop": "no response for 1 s",
        "raise": "exit code 1: ZeroDivisionError: record 6",
    }
    why |= {"kill": "SIGKILL", "hang": why["stop"]}
    assert report.facts.pop("worker_memory")["largest"] > 0
    assert report.errors == 0 and report.facts == {"workers": 2, "replaced": 1, "ended": {why[what]: 1}}
    begun = [shard for shard, _, _ in place.begun()]
    assert sorted(begun) == sorted([*range(10), 1])  # its shard, and no other, was run again


def test_what_is_said_of_workers_that_ended():
    """At the end, by the run in which it happened."""
    done = Report(manifest="", output="out", size=0, sha256="", records=8, errors=0, shards=4, computed=4)
    for ended, line in (
        ({"SIGKILL": 1}, "A worker ended and was replaced: SIGKILL; see logs/ in out.job"),
        ({"SIGSEGV": 2, "exit code 3": 1},
         "3 workers ended and were replaced: SIGSEGV (2 times), exit code 3; see logs/ in out.job"),
    ):  # fmt: skip
        ran = msgspec.structs.replace(done, seconds={"merge": 0.1}, facts=facts_of(2, Counter(ended)))
        assert list(_outcome(ran, "out.job", None)) == [line]
        later = msgspec.structs.replace(ran, seconds={}, computed=0)
        assert list(_outcome(later, "out.job", None)) == ["Nothing to do: all 4 shards and the output were there"]
    merged = msgspec.structs.replace(done, seconds={"merge": 0.1})
    for shards, computed, line in (
        (1, 0, "The only shard was there: the output was made of it"),
        (4, 0, "All 4 shards were there: the output was made of them"),
        (4, 3, "Resumed: 1 of 4 shards was there"),
    ):
        assert list(_outcome(msgspec.structs.replace(merged, shards=shards, computed=computed), "out.job", None)) == [
            line
        ]
    alone = msgspec.structs.replace(done, shards=1, computed=0)
    assert list(_outcome(alone, "out.job", None)) == ["Nothing to do: the only shard and the output were there"]
    assert facts_of(2, Counter()) == {"workers": 2, "replaced": 0}


@pytest.mark.parametrize(
    ("what", "why"),
    [("exit", "exit code 3"), ("crash", "SIGSEGV"), ("raise", "exit code 1: ZeroDivisionError: record 6")],
)
def test_a_record_that_traps(place, what, why):
    """After two workers its shard is run a record at a time, after two more record 6 is reported; the others are as
    ever. That is final: the next run has nothing to do."""
    report = run(place.task(trouble={6: (what, 9)}), place.output, Local(2))
    place.check(place.squares[:48] + place.squares[56:])
    assert (report.errors, report.facts["replaced"]) == (1, TRIES + TRIES)
    error = json.loads(Path(f"{place.output}.job/errors/00001.jsonl").read_text())
    assert error == {"line": 6, "field": "", "message": f"it ended its worker: {why}"}
    assert run(place.task(), place.output, Local(2)).computed == 0


@pytest.mark.parametrize("kills", [3, TRIES + KILLS - 1])
def test_kills_from_outside_make_no_record_an_error(place, kills):
    """As an operator's, or the kernel's where another program takes the memory: record 6 is at work each time."""
    report = run(place.task(trouble={6: ("kill", kills)}), place.output, Local(2))
    place.check()
    assert report.errors == 0 and report.facts["ended"] == {"SIGKILL": kills}
    assert run(place.task(), place.output, Local(2)).computed == 0


def test_a_record_that_is_doubted_is_tried_again_by_the_next_run(place):
    """The job finishes without it; the finished output stays until a run has a better one."""
    most = TRIES + KILLS
    report = run(place.task(trouble={6: ("kill", most)}), place.output, Local(2))
    without = place.squares[:48] + place.squares[56:]
    place.check(without)
    assert (report.errors, report.facts["replaced"]) == (1, most)
    error = json.loads(Path(f"{place.output}.job/errors/00001.jsonl").read_text())
    assert error["message"] == "it ended its worker: SIGKILL (killed from outside: the next run tries it again)"
    assert run(place.task(), place.output, Inline()).computed == 0  # it would end this process
    with pytest.raises(InputError):
        run(place.task(trouble={5: ("error", 1)}), place.output, Local(2))
    place.check(without)
    assert status(place.output).state == "finished" and verify(place.output).finished and verify(place.output).intact
    again = run(place.task(trouble={6: ("kill", most + most)}), place.output, Local(2))
    assert (again.computed, again.errors) == (1, 1)
    place.check(without)
    better = run(place.task(), place.output, Local(2), Settings(max_errors=0))
    assert (better.computed, better.errors) == (1, 0)
    place.check()
    assert run(place.task(), place.output, Local(2)).computed == 0


def test_a_retry_that_ends_before_the_merge_is_not_forgotten(place, monkeypatch):
    """Its shard is better than the output: the next run makes the output of it."""
    run(place.task(trouble={6: ("kill", TRIES + KILLS)}), place.output, Local(2))
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "merge", lambda *given: (_ for _ in ()).throw(InputError("ended")))
        with pytest.raises(InputError, match="ended"):
            run(place.task(), place.output, Local(2))
    place.check(place.squares[:48] + place.squares[56:])
    assert run(place.task(), place.output, Local(2)).computed == 0
    place.check()


def test_a_shard_that_ends_every_worker(place, monkeypatch):
    """Where records cannot be told apart: the others are run, the error names the shard, and a rerun tries again."""
    Path(place.input).write_bytes(b"line\n" * 100)
    task = toy_jobs.Upper(place.input, toy_jobs.Knobs(place.notes, {17: ("exit", 3)}))
    with pytest.raises(InternalError, match="shard 1 stopped every worker that ran it: exit code 3; bytes 64 to 128"):
        run(task, place.output, Local(2))
    assert len(place.parts()) == 7 and not os.path.exists(place.output)
    assert run(task, place.output, Local(2)).computed == 1
    assert Path(place.output).read_bytes().count(b"LINE") == 100


def test_many_shards_that_end_every_worker_end_the_job(place):
    trouble = dict.fromkeys(range(1, 100, 12), ("exit", 99))
    Path(place.input).write_bytes(b"line\n" * 100)
    with pytest.raises(InternalError, match=r"stopped every worker.*\(and 2 more\)"):
        run(toy_jobs.Upper(place.input, toy_jobs.Knobs(place.notes, trouble)), place.output, Local(2))


def test_an_error_of_the_input_ends_the_job(place):
    with pytest.raises(InputError, match="record 21: is not to my taste") as caught:
        run(place.task(trouble={21: ("error", 1)}), place.output, Local(2))
    assert caught.value.exit_code == 3 and place.temporary() == []
    run(place.task(), place.output, Local(2))
    place.check()


def test_workers_that_cannot_start(place):
    with pytest.raises(
        InternalError, match="workers die while they start: exit code 1: RuntimeError: no model"
    ) as caught:
        run(toy_jobs.Startless(place.input), place.output, Local(2))
    assert caught.value.path.endswith(".log")


def test_an_input_that_shrinks(place):
    """Never a SIGBUS: the worker's own error."""
    place.fill(400)
    process = place.start(knobs={"slow": 0.01})
    place.wait_for(3)
    os.truncate(place.input, 100)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 3
    assert "the input shrank while it was read" in said or "input.changed was" in said


def check_nobody_is_left(place):
    """No process of the job, soon."""
    until = time.monotonic() + 300
    pids = {pid for _, pid, _ in place.begun()}
    while pids := {pid for pid in pids if alive(pid)}:
        assert time.monotonic() < until, pids
        time.sleep(0.01)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


GRACE = 5.0  # seconds


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
@pytest.mark.parametrize("count", [2, pytest.param(30, marks=pytest.mark.long)])
def test_signals(place, number, count, rng, kill_group):
    """At random times: exit 75 within the grace time, nobody left, what is whole is kept; and all of it at the end."""
    place.fill(100 * count)  # 25 shards a signal
    for more in rng.integers(1, 4, count).tolist():
        process = place.start(knobs={"slow": 0.005}, options={"grace": GRACE})
        try:
            place.wait_for(len(place.begun()) + more)
            time.sleep(rng.random() * 0.05)
            process.send_signal(number)
            sent, before = time.monotonic(), place.parts()
            said = process.communicate(timeout=300)[1]
            assert process.returncode == 75, said
            assert f"stopped by {number.name}" in said and "Traceback" not in said
            assert time.monotonic() - sent < GRACE + 1
            assert set(before) <= set(place.parts()) and not os.path.exists(place.output)
            assert place.temporary() == []
            check_nobody_is_left(place)
        finally:
            kill_group(process)
    assert len(place.begun()) == len(place.parts()), "a shard was begun twice"
    run(place.task(), place.output, Local(2))
    place.check()


@pytest.mark.parametrize("to_all", [False, True], ids=["supervisor", "group"])
def test_a_signal_while_a_shard_hangs(place, to_all):
    """The grace time ends it: 75, and the shard is not there."""
    process = place.start(knobs={"trouble": {"6": ["hang", 1]}}, options={"grace": 1.0})
    place.wait_for(10)
    sent = time.monotonic()
    os.killpg(process.pid, signal.SIGTERM) if to_all else process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 75 and time.monotonic() - sent < 5, said
    assert len(place.parts()) == 9 and place.temporary() == []
    check_nobody_is_left(place)
    assert run(place.task(), place.output, Local(2)).computed == 1
    place.check()


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_ends_it_at_once(place, first):
    process = place.start(knobs={"trouble": {"6": ["hang", 1]}}, options={"grace": 60.0})
    place.wait_for(10)
    process.send_signal(first)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 130 and time.monotonic() - sent < 2 and "Traceback" not in said
    assert said.endswith("Ended at once: the shards that are whole are kept\n")
    check_nobody_is_left(place)
    run(place.task(), place.output, Local(2))
    place.check()


def test_workers_do_not_outlive_their_supervisor(place):
    process = place.start(knobs={"trouble": {"6": ["hang", 1], "30": ["hang", 1]}})
    place.wait_for(6)
    process.kill()
    process.communicate()
    check_nobody_is_left(place)
    run(place.task(), place.output, Local(2))
    place.check()


def test_one_worker_is_ten_times_slower(place):
    """Four workers, twenty shards each: within 1.15 of ideal, from when the last of them begins its first shard."""
    place.fill(80)
    records = []
    task = place.task(slow=0.16, slowest=0)
    run(task, place.output, Local(4), Settings(shard_size=1), watch=toy_jobs.Seen(records.append))
    place.check()
    worker_of = {shard: worker for shard, _, worker in place.begun()}
    spent = [[], [], [], []]
    for record in records:
        spent[worker_of[record.shard]].append((record.finished - record.seconds, record.finished))
    begin = max(min(shards)[0] for shards in spent)
    rates = [len(shards) / (max(shards)[1] - min(shards)[0]) for shards in spent]  # what else runs here costs all
    left = sum((end - max(start, begin)) / (end - start) for shards in spent for start, end in shards if end > begin)
    ideal, took = left / sum(rates), max(record.finished for record in records) - begin
    assert took < 1.15 * ideal, (took, ideal)
    assert 2 <= len(spent[0]) <= 9


def peaks(place, count):
    process = place.start(task="upper", options={"shard_size": 1 << 16})
    said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert len(place.parts()) == count
    return json.loads(said)


def test_memory_does_not_grow_with_the_input(place):
    """1 and 100 shards of 64 KiB: the peaks of supervisor and workers grow by less than 10 %."""
    found = []
    for count in (1, 100):
        Path(place.input).write_bytes((b"l" * 1023 + b"\n") * 64 * count)
        found.append(peaks(place, count))
        os.rename(f"{place.output}.job", f"{place.path}/{count}.job")
    assert all(found[1][whose] < 1.1 * found[0][whose] for whose in ("peak", "workers")), found
