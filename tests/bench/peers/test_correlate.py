"""scipy beside correlate: the peer that is timed computes what the rungs compute."""

import dataclasses

import numpy as np
import pytest

from tilewright.bench.peers import cpu_peers
from tilewright.bench.sizes.correlate import bind, make, sizes

pytest.importorskip("scipy")


@pytest.mark.parametrize("case", sizes(), ids=lambda case: case.name)
def test_scipy_computes_the_same(case, rng):
    """Each timed form, on a smaller array: a mean, a line, a dense kernel."""
    small = dataclasses.replace(case, shape=tuple(min(n, 24) for n in case.shape))
    inputs = make(small, rng)
    (answer,) = (call() for call in cpu_peers("correlate", small, inputs).values())
    np.testing.assert_allclose(answer, bind(small, inputs)(), rtol=1e-6, atol=1e-6)
