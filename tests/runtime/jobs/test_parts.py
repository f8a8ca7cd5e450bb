"""N processes that share a job directory without knowing of each other, and a last one that makes the output."""

import os
from pathlib import Path

import pytest

from tilewright.errors import InputError, Interrupted, ResourceError, UsageError
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.engines.local import Local
from tilewright.runtime.jobs import lease
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.lease import Lease
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings


def test_parts_and_the_run_of_all(place):
    """Part 1 fails halfway: the last run does what it has left, and nothing else."""
    report = run(place.task(), place.output, Inline(), Settings(part=(0, 3)))
    assert (report.computed, report.shards, place.parts()) == (4, 10, [f"{n:05d}.part" for n in (0, 3, 6, 9)])
    with pytest.raises(InputError):
        run(place.task(trouble={17: ("error", 1)}), place.output, Inline(), Settings(part=(1, 3)))
    assert run(place.task(), place.output, Local(2), Settings(part=(2, 3))).computed == 3
    assert run(place.task(), place.output, Inline(), Settings(part=(2, 3))).computed == 0
    assert not os.path.exists(place.output)
    assert run(place.task(), place.output, Inline()).computed == 2
    place.check()
    assert sorted(shard for shard, _, _ in place.begun()) == sorted([*range(10), 4])


def test_parts_at_the_same_time(place, monkeypatch):
    """All begin on nothing; a run of all has to wait for them."""
    monkeypatch.setattr(lease, "DYING_SECONDS", 0.0)
    processes = [place.start(engine="inline", knobs={"slow": 0.05}, options={"part": [n, 2]}) for n in range(2)]
    place.wait_for(2)
    with pytest.raises(ResourceError, match=r"another run works on this job: process (\d+) on"):
        run(place.task(), place.output, Inline())
    for process in processes:
        said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    assert run(place.task(), place.output, Inline()).computed == 0
    place.check()
    assert sorted(shard for shard, _, _ in place.begun()) == list(range(10))


def test_a_part_helps_the_others(place):
    """Part 1 does not start, part 2 fails at its first shard: part 0 does what both have left."""
    with pytest.raises(InputError):
        run(place.task(trouble={9: ("error", 1)}), place.output, Inline(), Settings(part=(2, 3), helps=True))
    for computed in (10, 0):
        assert run(place.task(), place.output, Inline(), Settings(part=(0, 3), helps=True)).computed == computed
    assert [shard for shard, _, _ in place.begun()] == [2, 0, 3, 6, 9, 7, 4, 1, 8, 5, 2]
    assert run(place.task(), place.output, Inline()).computed == 0
    place.check()


@pytest.mark.parametrize("engine", ["inline", 1])
def test_parts_that_help_at_the_same_time(place, engine):
    """Each shard runs once, whoever has it."""
    parts = [{"part": [n, 4], "helps": True} for n in (0, 1, 2)]
    processes = [place.start(engine=engine, knobs={"slow": 0.02}, options=options) for options in parts]
    for process in processes:
        said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    assert sorted(shard for shard, _, _ in place.begun()) == list(range(10))
    assert run(place.task(), place.output, Inline()).computed == 0
    place.check()


def test_a_shard_that_ends_processes_ends_no_more_than_two(place):
    """A part that helps leaves it to its own part, and that one tries it again."""
    options = [{"part": [n, 5], "helps": True} for n in (0, 1, 2)]
    for n, code in enumerate((-9, -9, 0)):
        process = place.start(engine="inline", knobs={"trouble": {15: ["kill", 2]}}, options=options[n])
        said = process.communicate(timeout=300)
        assert process.returncode == code, said
    assert place.parts() == [f"{n:05d}.part" for n in range(10) if n != 3]
    assert run(place.task(), place.output, Inline(), Settings(part=(3, 5), helps=True)).computed == 1
    assert not any(Path(f"{place.output}.job/part-claims").read_bytes())
    assert run(place.task(), place.output, Inline()).computed == 0
    place.check()


def test_a_stopped_part_blames_no_shard(place):
    """However often: the others help with what it had begun."""
    place.fill(4)
    for _ in range(3):
        task = place.task(slow=0.01)
        with pytest.raises(Interrupted):
            run(task, place.output, Stopped(), Settings(part=(0, 2), helps=True))
    assert run(place.task(), place.output, Inline(), Settings(part=(1, 2), helps=True)).computed == 1


class Stopped(Inline):
    """Is asked to stop while its first shard runs."""

    def run(self, job):
        assert job.claim(job.todo[0])
        raise Interrupted("stopped")


def test_no_part_beside_a_run_of_all(place, monkeypatch):
    monkeypatch.setattr(lease, "DYING_SECONDS", 0.0)
    with (
        JobDirectory(place.output, make=True) as directory,
        Lease(directory),
        pytest.raises(ResourceError, match="another run works on this job"),
    ):
        run(place.task(), place.output, Inline(), Settings(part=(0, 2)))


def test_a_part_needs_locks(place, monkeypatch):
    def refuse(fd, operation):
        raise OSError(lease.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lease.fcntl, "flock", refuse)
    with pytest.raises(ResourceError, match="no locks available"):
        run(place.task(), place.output, Inline(), Settings(part=(0, 2)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Settings(part=(2, 2)), "part is 2/2; parts are counted from 0 to 1"),
        (Settings(part=(0, 2), restart=True), "a part cannot restart the job"),
        (Settings(part=(0, 2), trace="out.json"), "a part cannot be traced"),
    ],
)
def test_what_a_part_cannot(place, options, message):
    with pytest.raises(UsageError, match=message):
        run(place.task(), place.output, Inline(), options)
