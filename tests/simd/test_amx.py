"""A tile product: on emulated tiles, and on the hardware's if it has tiles."""

import ml_dtypes
import numpy as np
import pytest
from numba import types

from tilewright import simd
from tilewright.simd import amx


def in_two_chains(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a (16, 32) times b (16, 16, 2), bfloat16 values in float32, in the order of the instruction: one sum for even k,
    one for odd k. A product of two such values is exact, so multiplying and then adding rounds once."""
    low, high = np.zeros((2, 16, 16), np.float32)
    for p in range(16):
        low += a[:, 2 * p, None] * b[p, :, 0]
        high += a[:, 2 * p + 1, None] * b[p, :, 1]
    return low + high


@pytest.mark.parametrize("tiles", [amx.Emulated, amx.Hardware])
def test_a_tile_product(tiles, rng):
    if tiles is amx.Hardware and not amx.available():
        pytest.skip("this CPU or its operating system offers no AMX bfloat16 tiles")
    configure, release, zero = tiles.configure, tiles.release, tiles.zero
    load, store, dot = tiles.load, tiles.store, tiles.dot

    @simd.kernel(types.void(simd.INPUT, simd.INPUT, simd.OUTPUT, simd.OUTPUT), name=f"test.{tiles.__name__}")
    def multiplied(a, b, c, memory):
        state = memory.reshape(9, 16, 16)
        configure(state, 16)
        zero(state, 0)
        load(state, 1, c, 5, 40)
        load(state, 4, a, 3, 20)
        load(state, 6, b, 0, 16)
        dot(state, 0, 4, 6)
        dot(state, 1, 4, 6)
        dot(state, 1, 4, 6)
        store(state, 0, c, 1000, 16)
        store(state, 1, c, 5, 40)
        release(state)

    a = rng.standard_normal((16, 32)).astype(ml_dtypes.bfloat16)
    b = rng.standard_normal((16, 16, 2)).astype(ml_dtypes.bfloat16)  # [pair][column][2]
    rows = np.zeros(3 + 16 * 20, np.float32)
    rows[3:].reshape(16, 20)[:, :16] = a.view(np.float32).reshape(16, 16)
    c = np.full(1000 + 256 + 8, -7, np.float32)
    before = rng.standard_normal((16, 16), dtype=np.float32)
    c[5 : 5 + 640].reshape(16, 40)[:, :16] = before
    multiplied(rows, b.reshape(-1).view(np.float32), c, np.zeros(9 * 256, np.float32))
    product = in_two_chains(a.astype(np.float32), b.astype(np.float32))
    assert np.array_equal(c[1000:1256].reshape(16, 16), product)
    assert np.array_equal(c[5 : 5 + 640].reshape(16, 40)[:, :16], before + product + product)
    assert (c[5 : 5 + 640].reshape(16, 40)[:, 16:] == -7).all() and (c[1256:] == -7).all()
