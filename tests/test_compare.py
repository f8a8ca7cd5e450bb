"""The tester is tested: twelve saboteurs of a real product, and the honest one."""

import ctypes

import ml_dtypes
import numpy as np
import pytest

from compare import GUARD, Guarded, compare, frozen

M, N, K = 9, 7, 33


@pytest.fixture
def product():
    """(a, b, float64 reference, bound) of a small matrix product."""
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((M, K), dtype=np.float32), rng.standard_normal((K, N), dtype=np.float32)
    size = np.abs(a).astype(np.float64) @ np.abs(b)
    return a, b, a.astype(np.float64) @ b, np.finfo(np.float32).eps * np.sqrt(K) * size


def test_an_honest_result_passes(product):
    a, b, reference, bound = product
    compare(a @ b, reference, bound)


def one_element(value):
    def sabotage(result, a, b):
        result[3, 4] = value
        return result

    return sabotage


def last_row_skipped(result, a, b):
    result[-1] = np.nan
    return result


def stale(result, a, b):
    return (np.roll(a, 1, axis=0) @ b).astype(np.float32)  # the answer to the call before


SABOTEURS = {
    "all NaN": (lambda result, a, b: np.full_like(result, np.nan), "63 of 63"),
    "one NaN": (one_element(np.nan), r"1 of 63 .* \[3, 4\]"),
    "one Inf": (one_element(np.inf), r"1 of 63 .* \[3, 4\]"),
    "zeros": (lambda result, a, b: np.zeros_like(result), "63 of 63"),
    "flipped sign": (lambda result, a, b: -result, "elements are wrong"),
    "last K dropped": (lambda result, a, b: a[:, :-1] @ b[:-1], "elements are wrong"),
    "last row skipped": (last_row_skipped, r"7 of 63 .* \[8, "),
    "transposed": (lambda result, a, b: result.T.copy(), r"shape is \(7, 9\)"),
    "wrong dtype": (lambda result, a, b: result.astype(np.float64), "dtype is float64"),
    "half precision": (lambda result, a, b: result.astype(np.float16).astype(np.float32), "elements are wrong"),
    "stale output": (stale, "elements are wrong"),
}


@pytest.mark.parametrize("name", SABOTEURS)
def test_a_saboteur_is_caught(product, name):
    a, b, reference, bound = product
    sabotage, message = SABOTEURS[name]
    with pytest.raises(AssertionError, match=message):
        compare(sabotage(a @ b, a, b), reference, bound)


@pytest.mark.parametrize(
    ("shape", "place", "message"),
    [
        ((5,), GUARD + 5, "past the end of row 0"),
        ((3, 4), GUARD + 4, "past the end of row 0"),
        ((2, 3, 4), -1, "past the end of row 5"),
        ((3, 4), GUARD - 1, "before the output"),
    ],
)
def test_a_write_past_the_end_is_caught(shape, place, message):
    """The twelfth saboteur."""
    guarded = Guarded(shape)
    guarded.array[...] = 1
    guarded.check()
    guarded._memory[place] = 0
    with pytest.raises(AssertionError, match=message):
        guarded.check()


def test_what_the_reference_has_not_finite_must_be_the_same():
    reference, bound = np.array([np.inf, np.nan, 1.0]), np.zeros(3)
    compare(np.array([np.inf, np.nan, 1], np.float32), reference, bound)
    with pytest.raises(AssertionError, match="1 of 3"):
        compare(np.array([-np.inf, np.nan, 1], np.float32), reference, bound)


def test_a_bound_that_cannot_fail_is_refused():
    with pytest.raises(AssertionError, match="bound itself"):
        compare(np.zeros(1, np.float32), np.ones(1), np.inf)


@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
def test_a_read_beside_an_input_is_seen(kind):
    rows = np.arange(40).astype(kind).reshape(5, 8)
    for array in (rows, rows.T, rows[:, 2:5], rows[::-2, ::3], rows[0]):
        copy = frozen({"x": array})["x"]
        assert copy.strides == array.strides and not copy.flags.writeable and (copy == array).all()
        assert copy.ctypes.data % 64 == array.ctypes.data % 64
        low, high = np.lib.array_utils.byte_bounds(copy)
        around = (ctypes.c_char * (high - low + 256)).from_address(low - 128)
        beside = np.frombuffer(around, kind)
        assert np.isnan(beside[: 128 // beside.itemsize]).all() and np.isnan(beside[-128 // beside.itemsize :]).all()
