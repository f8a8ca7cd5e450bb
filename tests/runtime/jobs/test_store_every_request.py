"""A run of a job in a store is killed at each of its requests; each request fails; each answer is lost. Then the next
run makes the output, and nothing else is left."""

import threading
from dataclasses import replace

import pytest

import cloud
import toy_jobs
from tilewright.errors import ResourceError, UsageError
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.jobs.settings import Settings

pytest.importorskip("obstore", reason="obstore is not installed (extra cloud)")

import obstore

from tilewright.runtime.stores import board

URL = "s3://bucket/far/out"
REQUESTS = ("put", "get", "head", "list", "delete")
OWN = Settings(keep_others=True)
RESTART, RETRY = replace(OWN, restart=True), replace(OWN, engine="local", retry_failed=True)

pytestmark = pytest.mark.long


class Killed(BaseException):
    """What a killed process does from then on: nothing."""


class Faults:
    """Counts the requests. The one of number `at` fails as `kind` says."""

    def __init__(self, monkeypatch):
        self._lock = threading.Lock()
        self.begin()
        for name in REQUESTS:
            monkeypatch.setattr(obstore, name, self._counted(getattr(obstore, name)))

    def begin(self, at=0, kind=""):
        self.at, self.kind, self.count, self.dead = at, kind, 0, False

    def _counted(self, real):
        def call(store, *given, **named):
            with self._lock:
                if self.dead:
                    raise Killed
                self.count += 1
                if self.count != self.at:
                    return real(store, *given, **named)
                self.dead = self.kind.startswith("killed")
                if self.kind == "killed before":
                    raise Killed
                if self.kind == "refused":
                    raise obstore.exceptions.GenericError("the network is down")
                answer = real(store, *given, **named)
                if self.dead:
                    raise Killed
                if self.kind == "answer lost" and named.get("mode", "overwrite") != "overwrite":
                    raise obstore.exceptions.AlreadyExistsError("by this very request, which was sent twice")
                return answer

        return call


def run(task, settings=OWN):
    return toy_jobs.run_by_url(task, URL, Inline(), settings)


def names(store):
    """All objects, but not the leases of processes that were killed, and what a process says about itself."""
    found = {one["path"] for chunk in obstore.list(store) for one in chunk}
    return {name for name in found if "/workers/" not in name and "/logs/" not in name}


@pytest.mark.parametrize("kind", ["killed before", "killed after", "refused", "answer lost"])
@pytest.mark.parametrize("what", ["new", "finished", "resumed", "restarted", "tried again", "a worker"])
def test_each_request(place, monkeypatch, tmp_path_factory, what, kind):
    monkeypatch.setenv("TILEWRIGHT_OBJECTS", str(tmp_path_factory.mktemp("copies")))
    monkeypatch.setattr(board, "LEASE_SECONDS", -1e9)  # a killed process is known at once
    monkeypatch.setattr(board, "LOOK_SECONDS", 0.01)
    place.fill(12)
    task = toy_jobs.Moody(place.input, bad=False)
    faults = Faults(monkeypatch)

    def prepared():
        store = cloud.memory(monkeypatch)
        faults.begin()
        if what == "restarted":
            run(replace(task, seed=1))
        elif what != "new":
            run(replace(task, bad=what == "tried again"))
        if what in ("resumed", "a worker"):
            lost = ("out", "out.job/delivered.json", "out.job/report.json", "out.job/shards/00001.part")
            obstore.delete(store, [f"far/{name}" for name in lost])
        return store

    def act():
        if what == "a worker":
            toy_jobs.work_on(task, URL, Inline(), settings)
        else:
            run(task, settings)

    settings = {"restarted": RESTART, "tried again": RETRY}.get(what, OWN)
    store = prepared()
    faults.begin()
    act()
    requests = faults.count
    run(task)
    left = names(store)
    assert requests > 10 and "far/out.job/delivering" not in left
    for at in range(1, requests + 1):
        store = prepared()
        faults.begin(at, kind)
        try:
            act()
        except (Killed, ResourceError):
            assert kind != "answer lost", at
        faults.begin()
        try:
            run(task)
        except UsageError as error:  # the run was killed before it began anew
            assert what == "restarted" and "seed was 1 and is 0" in str(error), at
        found = bytes(obstore.get(store, "far/out").bytes())
        if found != place.squares:  # or before it tried the failed records again
            assert what in ("restarted", "tried again"), at
            run(task, settings)
            found = bytes(obstore.get(store, "far/out").bytes())
        assert found == place.squares and names(store) == left, (at, names(store) ^ left)
