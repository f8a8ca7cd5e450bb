"""Vectors of float64: exp to the last bits, widening, masks."""

import math

import numpy as np
import pytest
from numba import types

from tilewright import simd

DOUBLES = types.Array(types.float64, 1, "C")
LANES = (2, 4, 8)
KERNELS = {}


def kernels(lanes: int):
    """(exp over an array, sum of a widened array, mask of x >= y) for a vector width."""
    if lanes in KERNELS:
        return KERNELS[lanes]

    @simd.kernel(types.void(DOUBLES), name=f"test.doubles.exp.{lanes}")
    def exp(x):
        for i in range(0, x.size, lanes):
            simd.store(x, i, simd.exp_double(simd.load_double(x, i, lanes)))

    @simd.kernel(types.float64(simd.INPUT), name=f"test.doubles.total.{lanes}")
    def total(x):
        sums = simd.splat_double(0.5, lanes)
        for i in range(0, x.size, lanes):
            sums = simd.add(sums, simd.load_double(x, i, lanes))
        return simd.reduce_add_double(sums)

    @simd.kernel(types.int64(DOUBLES, DOUBLES), name=f"test.doubles.mask.{lanes}")
    def mask(x, y):
        return simd.lanes_at_least(simd.load_double(x, 0, lanes), simd.load_double(y, 0, lanes))

    KERNELS[lanes] = exp, total, mask
    return KERNELS[lanes]


@pytest.mark.parametrize("lanes", LANES)
def test_exp_is_right_to_the_last_bits(lanes, rng):
    x = -np.concatenate([rng.random(40_000) * 708, rng.random(40_000) * 3, 10.0 ** rng.uniform(-20, 0, 8_000)])
    y = x.copy()
    kernels(lanes)[0](y)
    assert (np.abs(y / np.exp(x) - 1) < 3 * 2.0**-52).all()
    some = x[::97]
    assert max(abs(a / math.exp(b) - 1) for a, b in zip(y[::97], some, strict=True)) < 3 * 2.0**-52


@pytest.mark.parametrize("lanes", LANES)
def test_exp_at_the_ends(lanes):
    x = np.array([0.0, -0.0, -708.0, -708.0001, -745.0, -1e300, -np.inf, -5e-324])
    kernels(lanes)[0](x)
    assert x.tolist() == [1.0, 1.0, pytest.approx(math.exp(-708), rel=1e-15), 0.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("lanes", LANES)
def test_floats_are_widened_and_summed_by_halves(lanes):
    x = np.arange(24, dtype=np.float32) + np.float32(2.0**-20)
    assert kernels(lanes)[1](x) == sum(map(float, x)) + 0.5 * lanes


@pytest.mark.parametrize("lanes", LANES)
def test_a_mask_has_one_bit_per_lane(lanes, rng):
    for _ in range(50):
        x, y = rng.integers(0, 3, (2, 8)).astype(np.float64)
        x[rng.integers(0, 8)] = np.nan
        wanted = sum(1 << i for i in range(lanes) if x[i] >= y[i])
        assert kernels(lanes)[2](x, y) == wanted


def test_the_lowest_bit():
    @simd.kernel(types.int64(types.int64), name="test.doubles.lowest_bit")
    def lowest(mask):
        return simd.lowest_bit(mask)

    assert [lowest(m) for m in (1, 2, 12, 1 << 40, -1)] == [0, 1, 2, 40, 0]
