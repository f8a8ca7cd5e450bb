"""Who gets the next shard: a slow worker fewer, and none that the others would be done with before it."""

import pytest

from tilewright.runtime.engines import schedule as module
from tilewright.runtime.engines.schedule import BLAMED, KILLS, TRIES, Assignment, End, schedule


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def simulate(clock, speeds, shards):
    """Seconds in which workers that take `speeds` seconds a shard are done, and the shards of each."""
    work, ends, taken = schedule(list(range(shards))), {}, dict.fromkeys(speeds, 0)
    for worker in speeds:
        work.join(worker)
    while not work.over:
        for worker, seconds in speeds.items():
            if worker not in ends and work.next(worker):
                ends[worker] = clock[0] + seconds
                taken[worker] += 1
        worker = min(ends, key=ends.get)
        clock[0] = ends.pop(worker)
        work.done(worker)
    return clock[0], taken


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("slow", [1.0, 3.0, 10.0])
@pytest.mark.parametrize("each", [20, 21, 23])
def test_within_115_percent_of_ideal(clock, workers, slow, each):
    speeds = {n: slow if n == 0 else 1.0 for n in range(workers)}
    shards = each * workers
    ideal = shards / sum(1 / seconds for seconds in speeds.values())
    took, taken = simulate(clock, speeds, shards)
    assert took <= 1.15 * ideal and sum(taken.values()) == shards


def test_equal_workers_all_get_one(clock):
    """None waits for another one that is no faster."""
    work = schedule(list(range(8)))
    for worker in range(4):
        work.join(worker)
    for _ in range(2):
        assert all(work.next(worker) for worker in range(4))
        clock[0] += 1
        for worker in range(4):
            work.done(worker)
    assert work.over


def test_nobody_waits_for_one_that_is_late(clock):
    work = schedule([0, 1, 2])
    work.join(0), work.join(1)
    assert work.next(0).shard == 0 and work.next(1).shard == 1
    clock[0] += 1
    work.done(1)
    work.next(1)
    clock[0] += 9
    work.done(0)  # took 10
    work.todo.append(module.Assignment(3))
    clock[0] += 0.5
    work.paces[1].at.begun = clock[0]
    assert work.next(0) is None  # the other one, who takes 1 s, does it sooner
    clock[0] += 2.5
    assert work.next(0).shard == 3


def test_shards_of_the_dead(clock):
    work = schedule([5, 6])
    work.join(0)
    assert not work.next(0).alone
    work.lost(0, End("SIGKILL", killed=True), None)
    work.join(0)
    assert work.next(0).shard == 5 and not work.paces[0].at.alone
    work.lost(0, End("SIGKILL", killed=True), None)
    for lost in range(TRIES * BLAMED):  # one record at a time from now on
        work.join(0)
        given = work.next(0)
        assert (given.shard, given.alone, len(given.skip)) == (5, True, lost // TRIES)
        work.lost(0, End("SIGSEGV"), lost // TRIES)
    for _ in range(TRIES):
        assert not work.given_up
        work.join(0)
        work.next(0)
        work.lost(0, End("SIGSEGV"), 99)
    assert work.given_up == {5: "SIGSEGV"}
    work.join(0)
    assert work.next(0).shard == 6
    work.lost(0, End("SIGSEGV"), None)
    work.lost(0, End("idle"), None)
    assert not work.over


KILLED, OWN = End("SIGKILL", killed=True), End("SIGSEGV")


@pytest.mark.parametrize(
    ("ends", "blamed", "doubted"),
    [
        ([OWN], False, False),
        ([OWN, OWN], True, False),
        ([KILLED] * (KILLS - 1), False, False),
        ([KILLED] * KILLS, True, True),
        ([KILLED, KILLED, OWN], False, False),
        ([KILLED, OWN, OWN], True, False),
        ([OWN] + [KILLED] * (KILLS - 1), True, True),
    ],
)
def test_who_is_to_blame(ends, blamed, doubted):
    """Two deaths of its own, or many kills from outside, which the next run does not believe."""
    given = Assignment(5, alone=True)
    for number, end in enumerate(ends, 1):
        assert not given.skip
        assert given.lost(end, 7) and given.deaths == number
    assert (len(given.skip), given.doubted) == (int(blamed), int(doubted))


def test_a_shard_whose_records_cannot_be_told_apart():
    """One crash while it runs alone gives it up; kills do only when there are many."""
    assert not Assignment(5, alone=True).lost(OWN, None)
    given = Assignment(5, alone=True)
    assert [given.lost(KILLED, None) for _ in range(KILLS)] == [True] * (KILLS - 1) + [False]
