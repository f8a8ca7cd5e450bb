"""Shared by all tests: reproducible random numbers."""

import zlib

import numpy as np
import pytest


@pytest.fixture
def rng(request) -> np.random.Generator:
    """A generator seeded by the test's own name: the same numbers in every run and order."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
