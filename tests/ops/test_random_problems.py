"""Random valid problems of every operation on every rung: a few of each in `make test`, thousands in `make test-long`.

TILEWRIGHT_PROBLEMS sets how many of each rung the long test runs.
"""

import dataclasses
import os

import numpy as np
import pytest

import random_problems
from random_cases import RANDOM
from tilewright.hardware.cpu import cpu
from tilewright.ops.core.ladder import operations

FEW = 2  # of a rung, in `make test`
MANY = int(os.environ.get("TILEWRIGHT_PROBLEMS", "200"))
NARROW = [(op, rung, lanes) for lanes in (4, 8) if lanes < cpu().lanes for op, rung in random_problems.pairs(lanes)]


def test_every_operation_has_random_problems():
    assert sorted(RANDOM) == sorted(operations())


@pytest.mark.parametrize("op", RANDOM)
def test_random_problems_vary_in_every_field(op):
    """Of the operation's `Case`: a new field would else be tried with its default alone."""
    rng, dtypes = np.random.default_rng(3), random_problems.classes(op)
    cases = [RANDOM[op](rng, dtypes[i % len(dtypes)]) for i in range(400)]
    fixed = {"label", "device", *(["dtype"] if len(dtypes) == 1 else [])}
    names = [field.name for field in dataclasses.fields(cases[0]) if field.name not in fixed]
    alike = [name for name in names if len({getattr(case, name) for case in cases}) == 1]
    assert not alike, f"all 400 random problems have the same {', '.join(alike)}"


@pytest.mark.parametrize(("op", "rung"), random_problems.pairs())
def test_a_few_problems(op, rung):
    """The numbers below FEW: the same in every run."""
    found = random_problems.failures(op, rung, range(FEW))
    assert not found, f"{len(found)} of {FEW} problems:\n" + "\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize(("op", "rung"), random_problems.pairs())
def test_many_problems(op, rung):
    found = random_problems.failures(op, rung, range(FEW, MANY))
    assert not found, f"{len(found)} of {MANY - FEW} problems:\n" + "\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize(("op", "rung", "lanes"), NARROW)
def test_many_problems_of_narrower_vectors(op, rung, lanes):
    """The kernels for SSE's, NEON's and AVX2's widths, which any machine can run."""
    found = random_problems.failures(op, rung, range(MANY // 2), lanes)
    assert not found, f"{len(found)} of {MANY // 2} problems:\n" + "\n".join(found)


def test_a_wrong_result_is_reported_with_its_command(monkeypatch):
    """The saboteur: a rung that adds to one element only."""
    spec = random_problems.spec_of("softmax")
    bind = spec.bind

    def sabotaged(case, inputs):
        call = bind(case, inputs)

        def spoil(out=None):
            result = np.asarray(call(out=out))
            if result.size:
                result[(-1,) * result.ndim] += 1
            return result

        return spoil

    monkeypatch.setattr(spec, "bind", sabotaged)
    found = random_problems.failures("softmax", "cpu.online", range(4))
    assert len(found) == 4
    assert found[0].startswith("python tests/random_problems.py softmax cpu.online --seed 0")
