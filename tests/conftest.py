"""Shared by all tests: reproducible random numbers, and GPU kernels run as Python unless TILEWRIGHT_GPU=1."""

import os
import zlib

if os.environ.get("TILEWRIGHT_GPU") != "1":  # before numba and triton are imported, which read these once
    os.environ |= {"NUMBA_ENABLE_CUDASIM": "1", "TRITON_INTERPRET": "1"}

import numpy as np
import pytest


@pytest.fixture
def rng(request) -> np.random.Generator:
    """A generator seeded by the test's own name: the same numbers in every run and order."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
