"""Amdahl's law and the USL find the parameters of a curve that follows them."""

import math

import pytest

from tilewright.bench.fits import Amdahl, Usl, amdahl, usl

WORKERS = (1, 2, 4, 8, 16)


@pytest.mark.parametrize("serial", [0.0, 0.04, 0.5, 1.0])
def test_amdahl_is_found(serial):
    law = Amdahl(serial, 0.0, 4)
    found = amdahl({n: law.speedup(n) for n in WORKERS})
    assert found.serial == pytest.approx(serial, abs=1e-12) and found.error < 1e-9 and found.points == 4
    assert found.limit == (pytest.approx(1 / serial) if serial else pytest.approx(math.inf))


@pytest.mark.parametrize(("contention", "coherency"), [(0.05, 0.002), (0.0, 0.01), (0.3, 0.0)])
def test_usl_is_found(contention, coherency):
    law = Usl(contention, coherency, 0.0, 4)
    found = usl({n: law.speedup(n) for n in WORKERS})
    assert (found.contention, found.coherency) == pytest.approx((contention, coherency), abs=1e-9)
    most = max(range(1, 500), key=law.speedup) if coherency else math.inf
    assert (found.peak == pytest.approx(law.peak, abs=1e-3) and abs(law.peak - most) < 1) or most == law.peak


def test_more_than_linear_is_no_negative_share():
    """A cache that fits only in parts: the laws have no such case, and their error says so."""
    fast = {1: 1.0, 2: 2.4, 4: 5.0}
    assert amdahl(fast).serial == 0 and amdahl(fast).error == pytest.approx(0.2)
    assert (usl(fast).contention, usl(fast).coherency) == (0, 0)


def test_slower_than_one_worker():
    assert amdahl({1: 1.0, 2: 0.8}).serial == 1 and amdahl({2: 0.8}).error == pytest.approx(0.25)


def test_too_few_points():
    assert amdahl({1: 1.0}) is None and usl({1: 1.0, 2: 1.9}) is None and amdahl({2: 1.9}).points == 1


def test_contention_is_a_share():
    assert usl({1: 1.0, 2: 0.4, 4: 0.3}).contention <= 1
