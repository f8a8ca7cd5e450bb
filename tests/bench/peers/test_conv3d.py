"""The libraries beside conv3d: what is timed computes what the rungs compute."""

import dataclasses

import numpy as np
import pytest

from tilewright.bench.peers import cpu_peers
from tilewright.bench.sizes.conv3d import make, reference, sizes

SMALL = {name: 40 for name in "DHW"}
CASES = {case.name: dataclasses.replace(case, **SMALL) for case in sizes() if not case.C}


@pytest.mark.parametrize("name", CASES)
def test_all_compute_the_same(name, rng):
    """Each timed form on a smaller volume."""
    case = CASES[name]
    inputs = make(case, rng)
    exact = reference(case, inputs)
    for peer, call in cpu_peers("conv3d", case, inputs).items():
        np.testing.assert_allclose(call(), np.broadcast_to(exact, np.shape(exact)), rtol=2e-4, atol=2e-4, err_msg=peer)
