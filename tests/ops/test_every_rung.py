"""Every operation x rung x case: within the bound, nothing written beside the output, inputs untouched, the same
bits again."""

import dataclasses
import importlib

import numpy as np
import pytest

from compare import Guarded, compare, frozen
from ops.cases import cases_of
from tilewright.ops.core.ladder import operations, using
from tilewright.ops.core.launch import threads

OPERATIONS = operations()


def _every():
    """A parameter for each case that a rung accepts; one skip, with its reason, for a rung whose hardware is not
    here."""
    for op in OPERATIONS:
        package = importlib.import_module(f"tilewright.ops.{op}")
        spec = importlib.import_module(f"tilewright.bench.sizes.{op}")
        for rung in package.ladder.rungs.values():
            missing = {why for case in cases_of(op) for why in rung.refuses(case.problem) if "this CPU" in why}
            if missing:
                skip = pytest.mark.skip(reason=f"{op}.{rung.name}: {'; '.join(missing)}")
                yield pytest.param(None, None, rung, None, id=f"{op}-{rung.name}", marks=skip)
                continue
            for case in cases_of(op):
                if not rung.refuses(case.problem):
                    yield pytest.param(package.ladder, spec, rung, case, id=f"{op}-{rung.name}-{case.name}")


@pytest.mark.parametrize(("ladder", "spec", "rung", "case"), list(_every()))
def test_rung(ladder, spec, rung, case, rng, monkeypatch):
    ran = []
    watched = dataclasses.replace(rung)
    vars(watched)["run"] = lambda *given: (ran.append(rung.name), rung.run(*given))  # where `cached_property` looks
    monkeypatch.setitem(ladder.rungs, rung.name, watched)
    ladder._chosen.cache_clear()
    inputs = frozen(spec.make(case, rng))
    reference = spec.reference(case, inputs)
    bound = spec.bound(case, inputs, reference, rung.c)
    with using(**{ladder.op: rung.name}):
        call = spec.bind(case, inputs)
        first, second = Guarded(reference.shape), Guarded(reference.shape)
        with threads(1):
            call(out=first.array)
        with threads(2):
            call(out=second.array)
            whole = np.asarray(call())  # without gaps, as a guarded one never is
    ladder._chosen.cache_clear()
    first.check()
    second.check()
    compare(np.ascontiguousarray(first.array), reference, bound)
    assert first.array.tobytes() == second.array.tobytes(), "one thread and two give different bits"
    assert whole.tobytes() == first.array.tobytes(), "an output without gaps gets other bits"
    if reference.size:
        assert set(ran) == {rung.name}


def test_every_rung_is_taken_by_some_case():
    """A rung that refuses every case, or all but those of hardware that is not here, would go untested unseen."""
    for op in OPERATIONS:
        package = importlib.import_module(f"tilewright.ops.{op}")
        for rung in package.ladder.rungs.values():
            reasons = [rung.refuses(case.problem) for case in cases_of(op)]
            hardware = all(any("this CPU" in why or "on cuda" in why for why in r) for r in reasons)
            assert hardware or not all(reasons), f"{op}.{rung.name} refuses every case: {reasons[0]}"


@pytest.mark.parametrize("op", OPERATIONS)
def test_a_ladder_ends_in_a_rung_that_takes_everything(op):
    package = importlib.import_module(f"tilewright.ops.{op}")
    spec = importlib.import_module(f"tilewright.bench.sizes.{op}")
    for case in [*cases_of(op), *spec.sizes()]:
        assert package.ladder.choose(case.problem).name in package.ladder.prefer
