"""Random valid problems of every operation on every rung for GPUs, each against float64 with the operation's own bound.

They need a GPU (TILEWRIGHT_GPU=1): a simulated kernel takes seconds for each of these sizes. TILEWRIGHT_PROBLEMS sets
how many of each rung run.
"""

import os
from collections.abc import Iterator

import numpy as np
import pytest

import gpu
from random_cases import RANDOM, spec_of
from random_problems import NoProblemError, draw, ladder_of
from tilewright.errors import ResourceError, UsageError

PROBLEMS = int(os.environ.get("TILEWRIGHT_PROBLEMS", "12"))


def rungs() -> Iterator:
    """A parameter (operation, rung) for each rung for GPUs; a skip with its reason for what cannot run here."""
    for op in RANDOM:
        for rung in ladder_of(op).rungs.values():
            if not rung.name.startswith("cpu."):
                why = "" if gpu.ON_GPU else "needs a GPU: TILEWRIGHT_GPU is not 1"
                yield pytest.param(op, rung, id=f"{op}-{rung.name}", marks=[pytest.mark.skip(reason=why)] * bool(why))


@pytest.mark.parametrize(("op", "rung"), [*rungs()])
def test_random_problems(op, rung):
    found, checked = [], 0
    for seed in range(PROBLEMS):
        try:
            case, _ = draw(op, rung.name, seed, "cuda", tuple(getattr(spec_of(op), "DEVICE_DTYPES", ("float32",))))
        except NoProblemError as error:
            pytest.skip(f"it takes shapes that its operation's own cases have: {error}")
        try:
            gpu.check(op, rung, case, np.random.default_rng(seed))
        except (ResourceError, UsageError):  # refused aloud: a table too small for one sentence, rows with gaps
            continue
        except (AssertionError, ValueError, RuntimeError) as error:
            found.append(f"{case}: {type(error).__name__}: {str(error)[:300]}")
        checked += 1
    assert checked and not found, f"{len(found)} of {checked} problems:\n" + "\n".join(found)
