"""Workers of a job in a store, and what they, a run that is stopped and `status` say."""

import pytest

import cloud
import toy_jobs
from tilewright.errors import Interrupted, ResourceError, UsageError
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.jobs.settings import Settings

pytest.importorskip("obstore", reason="obstore is not installed (extra cloud)")

import obstore

from tilewright.runtime.stores.stage import staged
from tilewright.runtime.stores.views import status

URL = "s3://bucket/far/out"
JOB = "far/out.job"
OWN = Settings(keep_others=True)  # as on the command line without --force


@pytest.fixture(name="memory", autouse=True)
def _memory(monkeypatch, tmp_path_factory):
    """A store in this process's memory."""
    monkeypatch.setenv("TILEWRIGHT_OBJECTS", str(tmp_path_factory.mktemp("copies")))
    return cloud.memory(monkeypatch)


def run(task, settings=OWN, engine=None):
    return toy_jobs.run_by_url(task, URL, engine or Inline(), settings)


def delete(memory, *names):
    obstore.delete(memory, [f"{JOB}/{name}" for name in names])


def shard(number):
    return f"shards/{number:05}.part"


class Then(Inline):
    """Calls `then` when the first run of shards has ended."""

    def __init__(self, then):
        super().__init__()
        self.then = then

    def run(self, job):
        super().run(job)
        then, self.then = self.then, lambda: None
        then()


def test_restart_of_the_same_command_while_a_worker_lives(place, memory):
    """The worker computes the shards that the new run has deleted."""
    run(place.task())
    delete(memory, "report.json", shard(1))
    worked = toy_jobs.work_on(place.task(), URL, Then(lambda: delete(memory, shard(2), shard(3))), OWN)
    assert (worked.mine, worked.done, worked.exit_code) == (3, 10, 0)


@pytest.mark.parametrize("how", ["another", "removed"])
def test_a_job_is_begun_anew_or_removed_while_a_worker_lives(place, memory, how):
    run(place.task())
    delete(memory, "report.json", shard(1))

    def then():
        delete(memory, "manifest.json", shard(2))
        if how == "another":
            obstore.put(memory, f"{JOB}/manifest.json", b"{}")

    with pytest.raises(UsageError, match=r"begun anew or removed.*Start the worker again"):
        toy_jobs.work_on(place.task(), URL, Then(then), OWN)


def test_a_run_that_another_has_overtaken(place, memory):
    """It was suspended, as by SIGSTOP. Meanwhile another one took over, wrote the output and ended."""

    def then():
        delete(memory, "lead")
        run(place.task())

    with pytest.raises(ResourceError, match=r"another run has taken over.* and has written the output. Use that"):
        run(place.task(), engine=Then(then))
    assert bytes(obstore.get(memory, "far/out").bytes()) == place.squares
    delete(memory, shard(1))
    assert run(place.task()).computed == 1, "a report of an earlier run is none of another"


def test_a_run_that_is_stopped_counts_the_shards_of_workers(place, memory):
    run(place.task())
    whole = bytes(obstore.get(memory, f"{JOB}/{shard(9)}").bytes())
    delete(memory, "report.json", *map(shard, range(2, 10)))

    class Stopped(Inline):
        def run(self, job):
            obstore.put(memory, f"{JOB}/{shard(9)}", whole)  # a worker's
            raise Interrupted("", value="SIGTERM")

    with pytest.raises(Interrupted, match="stopped by SIGTERM: 3 of 10 shards are kept"):
        run(place.task(), engine=Stopped())


def test_status_lists_the_processes_of_a_job_in_a_store(place, memory):
    """Also the one that started the job, and those that have ended."""
    seen = []

    class Watched(Inline):
        def run(self, job):
            super().run(job)
            seen.append(status_of().workers)

    def status_of():
        with staged(URL) as output:
            return status(output)

    run(place.task(), engine=Watched())
    assert [(one.worker, one.device) for one in seen[0]] == [(0, "CPU")]
    assert [(one.shards, one.records) for one in status_of().workers] == [(10, 40)]
    delete(memory, "report.json", shard(1), shard(2))
    toy_jobs.work_on(place.task(), URL, Inline(), OWN)
    assert [(one.worker, one.shards, one.records) for one in status_of().workers] == [(0, 10, 40), (1, 2, 8)]
