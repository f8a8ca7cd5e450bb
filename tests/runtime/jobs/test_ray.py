"""The adapter to Ray, on a stand-in for the calls that it uses. test_ray_cluster.py has real clusters."""

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

import toy_jobs
from tilewright.errors import InputError, InternalError, Interrupted, ResourceError, TilewrightError, UsageError
from tilewright.runtime.engines import ray as module
from tilewright.runtime.engines import ray_actor
from tilewright.runtime.engines.ray import Ray, cores_each
from tilewright.runtime.engines.schedule import KILLS, TRIES, Assignment
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.task import Place
from tilewright.runtime.jobs.unchanged import AsBegun


class RayError(Exception):
    cause = None


class Ended(BaseException):
    """An actor dies, where this is its process."""


class Hung(BaseException):
    """It would sleep for an hour."""


class Actor:
    """Runs a call at once, so that its reference is what it gave, or will never give."""

    def __init__(self, started, kind, *said):
        self._actor = kind(*said)
        self.killed = False
        started.append(self)

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *said: self._call(getattr(self._actor, name), said))

    def _call(self, method, said):
        assert not self.killed
        call = SimpleNamespace(value=None, error=None, ready=True)
        try:
            call.value = method(*said)
        except Ended:
            call.error = RayError("The actor died.\nIts node says more.")
        except Hung:
            call.ready = False
        except (ArithmeticError, RuntimeError, TilewrightError) as error:
            call.error = RayError()
            call.error.cause = error
        return _Hashable(call)


class _Hashable:
    def __init__(self, call):
        self.call = call


@pytest.fixture
def cluster(monkeypatch):
    """Ray, as far as the engine knows it: one node with 4 cores. Actors live in this process."""
    started, state = [], SimpleNamespace(on=False)

    def get(ref):
        if ref.call.error:
            raise ref.call.error
        return ref.call.value

    def wait(refs, num_returns, timeout):
        return [ref for ref in refs if ref.call.ready][:num_returns], []

    def remote(kind):
        options = lambda **wanted: SimpleNamespace(remote=lambda *said: Actor(started, kind, *said))  # noqa: E731
        return SimpleNamespace(options=options)

    fake = SimpleNamespace(
        init=lambda **said: setattr(state, "on", True),
        shutdown=lambda: setattr(state, "on", False),
        is_initialized=lambda: state.on,
        nodes=lambda: [{"NodeID": "one", "Alive": True, "Resources": {"CPU": 4.0}}],
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "one"),
        remote=remote,
        get=get,
        wait=wait,
        kill=lambda actor, no_restart: setattr(actor, "killed", True),
        exceptions=SimpleNamespace(RayError=RayError),
        started=started,
        state=state,
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(module, "TICK", 0.0)
    monkeypatch.setattr(faulthandler, "enable", lambda file: os.close(file))
    monkeypatch.setattr(os, "_exit", raising(Ended))
    monkeypatch.setattr(toy_jobs.time, "sleep", lambda seconds: raising(Hung)() if seconds > 9 else None)
    return fake


def raising(kind):
    def call(*said):
        raise kind

    return call


def test_a_job(place, cluster):
    report = run(place.task(), place.output, Ray(2))
    place.check()
    assert report.facts == {"workers": 2, "replaced": 0} and len(cluster.started) == 2
    assert {worker for _, _, worker in place.begun()} == {0, 1}
    assert all(actor.killed for actor in cluster.started) and not cluster.state.on


@dataclass
class Overtaken(toy_jobs.Squares):
    """Another process commits the shard while this one runs it: `call` does so."""

    call: Callable[[], object] = lambda: None

    def open(self, place):
        return OvertakenWorker(self, place)


class OvertakenWorker(toy_jobs.SquaresWorker):
    """See Overtaken."""

    def run(self, shard, out, beat):
        self.task.call()
        return super().run(shard, out, beat)


def test_an_actor_that_ray_has_lost_replaces_no_shard(place, cluster):
    """Its node was cut off from Ray, so another actor has run its shard. The job may have changed the shard since."""
    run(place.task(), place.output, Ray(2))
    part = Path(f"{place.output}.job/shards/00003.part")
    content = part.read_bytes()
    part.unlink()
    task = Overtaken(place.input, call=lambda: part.write_bytes(content))
    actor = ray_actor.Actor(ray_actor.Hire(task, place.output, Place(), None, 9, False, AsBegun()))
    actor.open()
    actor.run(Assignment(3))
    assert part.read_bytes() == content


@pytest.mark.parametrize("what", ["exit", "raise", "hang"])
def test_an_actor_that_ends_is_replaced(place, cluster, what):
    report = run(place.task(trouble={6: (what, 1)}), place.output, Ray(2), Settings(watchdog=0.2))
    place.check()
    assert (report.errors, report.facts["replaced"]) == (0, 1)


@pytest.mark.parametrize(
    ("what", "replaced", "why"),
    [
        ("exit", TRIES + KILLS, "The actor died. (killed from outside: the next run tries it again)"),  # or so it seems
        ("raise", TRIES + TRIES, "ZeroDivisionError('record 6')"),
    ],
)
def test_a_record_that_traps(place, cluster, what, replaced, why):
    report = run(place.task(trouble={6: (what, 9)}), place.output, Ray(2))
    place.check(place.squares[:48] + place.squares[56:])
    assert (report.errors, report.facts["replaced"]) == (1, replaced)
    error = json.loads(Path(f"{place.output}.job/errors/00001.jsonl").read_text())
    assert error["message"] == f"it ended its worker: {why}"


def test_an_error_of_the_input_ends_the_job(place, cluster):
    with pytest.raises(InputError, match="record 21: is not to my taste"):
        run(place.task(trouble={21: ("error", 1)}), place.output, Ray(2))
    assert all(actor.killed for actor in cluster.started)


def test_a_shard_that_ends_every_actor(place, cluster):
    Path(place.input).write_bytes(b"line\n" * 100)
    task = toy_jobs.Upper(place.input, toy_jobs.Knobs(place.notes, {17: ("exit", TRIES + KILLS)}))
    with pytest.raises(InternalError, match="shard 1 stopped every actor that ran it: The actor died"):
        run(task, place.output, Ray(2))


def test_actors_that_cannot_start(place, cluster):
    with pytest.raises(InternalError, match=r"an actor stopped while it started: RuntimeError\('no model'\)"):
        run(toy_jobs.Startless(place.input), place.output, Ray(2))


def test_a_signal(place, cluster):
    """What runs is committed; nothing new is begun."""
    ask = toy_jobs.Seen(lambda record: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        run(place.task(), place.output, Ray(2), None, ask)
    assert len(place.parts()) == len(place.begun()) == 2
    run(place.task(), place.output, Ray(2))
    place.check()


def test_the_cores_of_a_worker():
    assert cores_each([16, 4], 2) == 8 and cores_each([2, 2, 0], 2) == 2 and cores_each([4], 3) == 1
    assert cores_each([4, 4], 100) == 1 and cores_each([0], 4) == 1 and cores_each([], 4) == 1
    with pytest.raises(UsageError, match="workers is 0; it must be at least 1"):
        Ray(0)


def test_without_ray(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ResourceError, match=r"Ray cannot be used: .*pip install .*\[ray\]'"):
        run(place.task(), place.output, Ray(1))
