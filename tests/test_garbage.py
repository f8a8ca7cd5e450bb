"""What a job has loaded is exempt from garbage collection while it runs, and only then."""

import gc
import weakref

import numpy as np
import pytest

from tilewright.bench.measure import interleave
from tilewright.garbage import collect_rarely, exempt_loaded, loaded_exempt


@pytest.fixture(autouse=True)
def none_exempt():
    """The tests' own objects are exempt, see conftest.py: not here. Nor do callbacks run: earlier tests of the process
    may have left those of workers and of libraries."""
    kept = list(gc.callbacks)
    gc.callbacks.clear()
    gc.unfreeze()
    yield
    gc.callbacks[:] = kept
    gc.freeze()


class Cycle:
    """Only a collection frees it."""

    def __init__(self):
        self.itself = self


def test_what_exists_is_exempt_until_the_end_of_the_block():
    with loaded_exempt():
        exempt = gc.get_freeze_count()
        new = weakref.ref(Cycle())
        gc.collect()
        assert new() is None, "objects of the block are collected"
    assert exempt > 10_000 and gc.get_freeze_count() == 0


def test_garbage_is_rarely_collected_until_a_job_runs():
    usual = gc.get_threshold()
    collect_rarely()
    rare = gc.get_threshold()
    with loaded_exempt():
        assert gc.get_threshold() == usual != rare


def test_a_program_that_has_exempt_objects_keeps_them():
    gc.freeze()
    with loaded_exempt():
        inside = gc.get_freeze_count()
    assert inside > 0 and gc.get_freeze_count() > 0


def test_it_ends_with_an_error():
    class Failure(Exception):
        pass

    with pytest.raises(Failure), loaded_exempt():
        raise Failure
    assert gc.get_freeze_count() == 0


def test_objects_that_the_interpreter_exempts_count_for_nothing(monkeypatch):
    """CPython 3.12 starts with 375."""
    counts = iter([375])
    monkeypatch.setattr(gc, "get_freeze_count", lambda: next(counts))
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    monkeypatch.setattr(gc, "unfreeze", lambda: frozen.clear())
    with loaded_exempt():
        assert frozen
    assert not frozen
    monkeypatch.undo()


def test_a_worker_exempts_what_its_first_full_collection_leaves():
    garbage = weakref.ref(Cycle())
    exempt_loaded()
    gc.collect(1)
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert gc.get_freeze_count() > 10_000 and garbage() is None and gc.callbacks == []


def test_callbacks_of_others_hear_the_end_of_that_collection():
    """A library's callback gets "start" and "stop" of every collection, wherever it is in the list."""
    heard = []
    before, after, last = ((lambda phase, info, name=name: heard.append((name, phase))) for name in "abc")
    gc.callbacks.append(before)
    exempt_loaded()
    exempt_loaded()  # a second worker in this process
    gc.callbacks.extend([after, last])
    gc.collect()
    assert heard == [(name, phase) for phase in ("start", "stop") for name in "abc"]
    assert gc.callbacks == [before, after, last] and gc.get_freeze_count() > 10_000


def test_no_library_is_collected_while_calls_are_measured():
    counts = []

    class Clock:
        def time(self, call, check):
            call()
            return lambda: 1.0

    interleave({"call": lambda: counts.append(gc.get_freeze_count())}, Clock(), runs=2, warm_up=1)
    assert counts[0] == 0 and min(counts[1:]) > 10_000


def test_a_job_exempts_what_it_has_loaded(tmp_path, monkeypatch):
    from tilewright.runtime.engines import inline
    from tilewright.runtime.jobs.settings import Settings
    from tilewright.runtime.named_models import model_path
    from tilewright.runtime.verbs.classify import ClassifyJob, classify

    counts, run_shard = [], inline.run_shard

    def watched(*given):
        counts.append(gc.get_freeze_count())
        return run_shard(*given)

    monkeypatch.setattr(inline, "run_shard", watched)
    np.savetxt(tmp_path / "in.txt", ["a good film"] * 3, fmt="%s")
    job = ClassifyJob(model_path("critic"), str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl"), settings=Settings())
    classify(job)
    assert counts and min(counts) > 10_000 and gc.get_freeze_count() == 0
