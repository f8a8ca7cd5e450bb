"""--restart throws nothing away before the new run has a shard of its own, wherever it is ended."""

import errno
import itertools
import os
import signal
import struct
import time
from pathlib import Path

import msgspec
import pytest

import toy_jobs
from tilewright.errors import Interrupted, ResourceError, UsageError
from tilewright.runtime.begun import begun_of
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.jobs import durable, earlier
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.placed import room
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.status import status

AGAIN = Settings(restart=True)


class Ending(Inline):
    """Ends with an error after so many shards."""

    def __init__(self, shards, error):
        super().__init__()
        self.shards, self.error = shards, error

    def run(self, job):
        job.todo = job.todo[: self.shards]
        super().run(job)
        raise self.error


REFUSAL = ResourceError("the table does not fit")


@pytest.fixture
def begun(place):
    """A job of which six of ten shards are there."""
    with pytest.raises(Interrupted):
        run(place.task(), place.output, Ending(6, Interrupted("enough")))
    assert len(place.parts()) == 6
    return place


class Killed(BaseException):
    """Stands for the end of the process."""


class AtOnce:
    """A thread that is not."""

    def __init__(self, target, name):
        self.start = target

    def join(self):
        """It is done."""


@pytest.fixture
def killed_at(monkeypatch):
    """killed_at(n, call): call(), whose process ends at the n-th change of a directory; whether it did."""

    def attempt(n, call):
        left = itertools.count(n - 1, -1)

        def ending(change):
            def changed(*given):
                if next(left) <= 0:  # nothing changes any more
                    raise Killed
                return change(*given)

            return changed

        with monkeypatch.context() as patch:
            patch.setattr(earlier, "Thread", AtOnce)
            for name in ("move", "remove", "place"):
                patch.setattr(durable.Folder, name, ending(getattr(durable.Folder, name)))
            try:
                call()
            except Killed:
                return True
            except (ResourceError, Interrupted):
                return False
        raise AssertionError("it was to fail")

    return attempt


def seeded(place, seed):
    return toy_jobs.Squares(place.input, seed=seed, knobs=toy_jobs.Knobs(notes=place.notes))


def squares(place, seed):
    values = struct.unpack(f"<{len(place.squares) // 8}Q", place.squares)
    return struct.pack(f"<{len(values)}Q", *(value + seed for value in values))


def test_a_worker_that_refuses(begun):
    with pytest.raises(ResourceError, match="does not fit"):
        run(seeded(begun, 5), begun.output, Ending(0, REFUSAL), AGAIN)
    assert len(begun.parts()) == 6 and "earlier" not in os.listdir(f"{begun.output}.job")
    assert run(begun.task(), begun.output, Inline()).computed == 4
    begun.check()


def test_a_finished_job_stays_finished(place):
    report = run(place.task(), place.output, Inline())
    with pytest.raises(ResourceError, match="does not fit"):
        run(place.task(), place.output, Ending(0, REFUSAL), AGAIN)
    assert run(place.task(), place.output, Inline()) == msgspec.structs.replace(report, computed=0, seconds={})


def test_a_shard_of_the_new_run_ends_the_earlier(begun):
    with pytest.raises(Interrupted):
        run(seeded(begun, 5), begun.output, Ending(1, Interrupted("enough")), AGAIN)
    assert len(begun.parts()) == 1 and "earlier" not in os.listdir(f"{begun.output}.job")
    assert run(seeded(begun, 5), begun.output, Inline()).computed == 9
    begun.check(squares(begun, 5))


def test_killed_before_the_first_shard(begun, killed_at):
    """At every step of setting aside and of putting back."""
    for n in itertools.count(1):
        if not killed_at(n, lambda: run(seeded(begun, 5), begun.output, Ending(0, REFUSAL), AGAIN)):
            break
        with pytest.raises(UsageError, match="seed was 0 and is 5"):
            run(seeded(begun, 5), begun.output, Inline())
        assert len(begun.parts()) == 6
    assert n > 8
    assert run(begun.task(), begun.output, Inline()).computed == 4
    begun.check()
    assert not {"earlier", "forgotten"} & {*os.listdir(f"{begun.output}.job")}


def test_killed_around_the_first_shard(begun, killed_at):
    """Either job is there, whole as far as it was done; none is a mixture."""
    kept = set()
    for n in itertools.count(1):
        done = not killed_at(n, lambda: run(seeded(begun, 5), begun.output, Ending(1, Interrupted("enough")), AGAIN))
        try:
            with pytest.raises(Interrupted):
                run(begun.task(), begun.output, Ending(0, Interrupted("enough")))
            kept.add("earlier")
            assert len(begun.parts()) == 6
        except UsageError as error:
            assert "seed was 5 and is 0" in str(error)
            kept.add("new")
            assert run(seeded(begun, 5), begun.output, Inline()).computed == 9
            begun.check(squares(begun, 5))
            with pytest.raises(Interrupted):  # the earlier one again
                run(begun.task(), begun.output, Ending(6, Interrupted("enough")), AGAIN)
        if done:
            break
    assert kept == {"earlier", "new"} and n > 8


def test_a_killed_restart_is_not_for_parts_to_end(begun, killed_at):
    assert killed_at(3, lambda: run(begun.task(), begun.output, Ending(0, REFUSAL), AGAIN))
    with pytest.raises(UsageError, match="set aside"):
        begun_of(begun.task(), Settings(), begun.output, "cpu")
    with pytest.raises(UsageError, match="without --part"):
        run(begun.task(), begun.output, Inline(), Settings(part=(0, 2)))
    assert run(begun.task(), begun.output, Inline()).computed == 4
    begun.check()


def test_a_process_that_is_killed(begun, kill_group):
    """SIGKILL as the first shard of the new run is computed."""
    log = len(begun.begun())
    process = begun.start(engine="inline", options={"restart": True}, knobs={"slow": 3600})
    begun.wait_for(log + 1)
    kill_group(process)
    assert process.returncode == -signal.SIGKILL and begun.parts() == []
    assert run(begun.task(), begun.output, Inline()).computed == 4
    begun.check()


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), SystemExit(3)])
def test_whatever_ends_the_run(begun, error):
    with pytest.raises(type(error)):
        run(seeded(begun, 5), begun.output, Ending(0, error), AGAIN)
    assert len(begun.parts()) == 6 and verify(begun.output).intact
    assert run(begun.task(), begun.output, Inline()).computed == 4


def test_a_folder_that_refuses(begun, monkeypatch):
    """In the middle of setting aside, for once; and in putting back, which the next run then does."""
    move, calls = durable.Folder.move, itertools.count()

    def refusing(self, name, target, new):
        if next(calls) in (5, 6):
            raise ResourceError("cannot rename", path=name)
        move(self, name, target, new)

    monkeypatch.setattr(durable.Folder, "move", refusing)
    with pytest.raises(ResourceError, match="cannot rename"):
        run(begun.task(), begun.output, Inline(), AGAIN)
    with pytest.raises(UsageError, match="set aside"):
        verify(begun.output)
    with pytest.raises(UsageError, match="run the job again, which puts them back"):
        status(begun.output)
    assert run(begun.task(), begun.output, Inline()).computed == 4
    begun.check()


def test_ranks_may_still_be_at_work(begun):
    """What is set aside stays there, or a rank's shard would come between; the next run puts it back."""

    class Ranks(Ending):
        ends_workers = False

    with pytest.raises(ResourceError, match="does not fit"):
        run(seeded(begun, 5), begun.output, Ranks(0, REFUSAL), AGAIN)
    assert begun.parts() == []
    assert run(begun.task(), begun.output, Inline()).computed == 4
    begun.check()


def test_a_job_without_a_manifest(begun):
    os.unlink(f"{begun.output}.job/manifest.json")
    os.mkdir(f"{begun.output}.job/output")
    with pytest.raises(ResourceError, match="does not fit"):
        run(begun.task(), begun.output, Ending(0, REFUSAL), AGAIN)
    assert os.path.isdir(f"{begun.output}.job/output") and len(begun.parts()) == 6


def test_logs_of_the_run_that_failed_stay(begun):
    logs = Path(f"{begun.output}.job/logs")
    (logs / "deaths.jsonl").write_text("earlier")
    (logs / "worker-0.log").write_text("earlier")

    class Saying(Ending):
        def run(self, job):
            (logs / "worker-0.log").write_text("it does not fit")
            super().run(job)

    with pytest.raises(ResourceError, match="does not fit"):
        run(begun.task(), begun.output, Saying(0, REFUSAL), AGAIN)
    assert (logs / "deaths.jsonl").read_text() == "earlier"
    assert (logs / "worker-0.log").read_text() == "it does not fit"
    assert run(begun.task(), begun.output, Inline(), AGAIN).computed == 10 and list(logs.iterdir()) == []


def test_a_full_disk_says_what_takes_the_space(begun):
    full = ResourceError("cannot write: no space left on device")
    full.__cause__ = OSError(errno.ENOSPC, "no space left on device")
    with pytest.raises(ResourceError, match=r"or remove .*out\.job, with what was done"):
        run(begun.task(), begun.output, Ending(0, full), AGAIN)


def test_room_counts_what_is_set_aside(begun, monkeypatch):
    disk = os.statvfs(begun.path)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)  # what other programs write meanwhile is not counted
    before = room(begun.output)
    aside = Path(f"{begun.output}.job/earlier/shards")
    aside.mkdir(parents=True)
    (aside / "00000.part").write_bytes(bytes(1 << 20))
    assert room(begun.output) - before >= 1 << 20
    (aside.parent / "output").write_bytes(bytes(1 << 20))
    assert room(begun.output) - before >= 2 << 20


def test_killed_between_a_shard_and_forgetting(begun, monkeypatch):
    """What the next run forgets first is gone before it has something to forget itself."""
    with monkeypatch.context() as patch:
        patch.setattr(earlier.Earlier, "forget", lambda self: None)
        patch.setattr(Ending, "ends_workers", False)
        with pytest.raises(Interrupted):
            run(seeded(begun, 5), begun.output, Ending(1, Interrupted("enough")), AGAIN)
    assert len(begun.parts()) == 1 and os.path.isdir(f"{begun.output}.job/earlier/shards")
    remove = earlier.Earlier._remove

    def slowly(self):
        time.sleep(0.3)
        remove(self)

    monkeypatch.setattr(earlier.Earlier, "_remove", slowly)
    assert run(seeded(begun, 7), begun.output, Inline(), AGAIN).computed == 10
    begun.check(squares(begun, 7))
    assert not {"earlier", "forgotten"} & {*os.listdir(f"{begun.output}.job")}
