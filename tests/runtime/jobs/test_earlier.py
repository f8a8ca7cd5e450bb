"""--restart throws nothing away before the new run has a shard of its own, wherever it is ended."""

import itertools
import os
import signal
import struct

import msgspec
import pytest

import toy_jobs
from tilewright.errors import Interrupted, ResourceError, UsageError
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.jobs import durable
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.task import Options

AGAIN = Options(restart=True)


class Ending(Inline):
    """Ends with an error after so many shards."""

    def __init__(self, shards, error):
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


@pytest.fixture
def killed_at(monkeypatch):
    """killed_at(n, call): call(), ended at the n-th change of a directory; whether it was."""

    def attempt(n, call):
        left = itertools.count(n - 1, -1)

        def ending(change):
            def changed(*given):
                if next(left) == 0:
                    raise Killed
                return change(*given)

            return changed

        with monkeypatch.context() as patch:
            for name in ("move", "remove"):
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
    with pytest.raises(UsageError, match="without --part"):
        run(begun.task(), begun.output, Inline(), Options(part=(0, 2)))
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
