"""N processes that share a job directory without knowing of each other, and a last one that makes the output."""

import os

import pytest

from tilewright.errors import InputError, ResourceError, UsageError
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
