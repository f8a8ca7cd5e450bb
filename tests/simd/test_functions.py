"""exp, tanh and both GELUs at every width of a vector: the worst error in ULP, and special values."""

import functools

import numpy as np
import pytest
from numba import types
from scipy.special import erfc

from tilewright import simd
from tilewright.simd import functions

WIDTHS = (4, 8, 16)
LEAST = 2.0**-149  # between neighbours below the normal range
STRIDE = 2039  # of the 2**32 bit patterns: a prime, 2.1 million of them
WORST = {"exp": 1.1, "tanh": 1.3, "gelu_tanh": 3.5, "gelu_exact": 6.2, "gelu_tanh_bfloat16": 200}  # ULP


def gelu_tanh(x):
    """In the form without cancellation: x / (1 + exp(-2 u))."""
    u = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    return x / (1 + np.exp(-2 * u))


TRUTH = {
    "exp": np.exp,
    "tanh": np.tanh,
    "gelu_tanh": gelu_tanh,
    "gelu_tanh_bfloat16": gelu_tanh,
    "gelu_exact": lambda x: x / 2 * erfc(-x / np.sqrt(2)),
}


@functools.cache
def kernel(name: str, lanes: int):
    """out[i] = function(x[i]) for a whole number of vectors."""
    function = getattr(functions, name)

    @simd.kernel(types.void(simd.INPUT, simd.OUTPUT, types.int64), name=f"test.functions.{name}.{lanes}")
    def apply(x, out, n):
        for i in range(0, n, lanes):
            simd.store(out, i, function(simd.load(x, i, lanes)))

    return apply


def computed(name: str, x: np.ndarray, lanes: int) -> np.ndarray:
    """float32 like x, (n,)."""
    padded = np.concatenate([x, np.zeros(-len(x) % 16, np.float32)])
    out = np.empty_like(padded)
    kernel(name, lanes)(padded, out, len(padded))
    return out[: len(x)]


def ulp(wanted: np.ndarray) -> np.ndarray:
    """The distance of neighbours in float32 at these float64."""
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log2(np.abs(wanted)))
    return np.maximum(2.0 ** (np.maximum(exponent, -149) - 23), LEAST)


def worst(name: str, lanes: int, x: np.ndarray) -> tuple[float, float]:
    """(the largest error in ULP, where); a result must be infinite where the rounded truth is, and NaN for NaN."""
    found = computed(name, x, lanes).astype(np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        wanted = TRUTH[name](
            np.maximum(x.astype(np.float64), -1e4) if name.startswith("gelu") else x.astype(np.float64)
        )
        if name == "exp":
            wanted[wanted < np.finfo(np.float32).tiny] = 0
        rounded = wanted.astype(np.float32)
    assert (np.isnan(found) == np.isnan(x)).all()
    ends = np.isinf(rounded)
    assert (found[ends] == rounded[ends]).all()
    finite = np.isfinite(rounded)
    assert np.isfinite(found[finite]).all()
    errors = np.abs(found[finite] - wanted[finite]) / ulp(wanted[finite])
    return float(errors.max()), float(x[finite][errors.argmax()])


@pytest.mark.parametrize("name", WORST)
def test_the_worst_error(name):
    x = np.arange(0, 2**32, STRIDE, dtype=np.uint32).view(np.float32)
    x = x[~(x < -10)] if name == "gelu_tanh_bfloat16" else x
    found, where = worst(name, 16, x)
    assert found <= WORST[name], f"{found} ULP at {where!r}"
    assert found > WORST[name] / 2, f"{found} ULP is far below what is published: does the test measure anything?"


@pytest.mark.parametrize("name", WORST)
def test_every_width_computes_the_same_bits(name, rng):
    x = (rng.standard_normal(40_000) * np.exp(rng.uniform(-20, 5, 40_000))).astype(np.float32)
    found = {lanes: computed(name, x, lanes).tobytes() for lanes in WIDTHS}
    assert found[4] == found[8] == found[16]


@pytest.mark.parametrize("lanes", WIDTHS)
@pytest.mark.parametrize(
    ("name", "x", "wanted"),
    [
        ("exp", [0.0, -0.0, -np.inf, np.inf, 89.0, -104.5, 1e-45, -87.34], [1, 1, 0, np.inf, np.inf, 0, 1, 0]),
        ("tanh", [0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 20.0], [0.0, -0.0, 1, -1, 1e-45, -1e-45, 1]),
        ("gelu_tanh", [0.0, -0.0, np.inf, -np.inf, 3e38, -3e38, 50.0], [0.0, -0.0, np.inf, -0.0, 3e38, -0.0, 50]),
        (
            "gelu_tanh_bfloat16",
            [0.0, -0.0, np.inf, -np.inf, 3e38, -11, 50.0],
            [0.0, -0.0, np.inf, -0.0, 3e38, -0.0, 50],
        ),
        ("gelu_exact", [0.0, -0.0, np.inf, -np.inf, 3e38, -3e38, 50.0], [0.0, -0.0, np.inf, -0.0, 3e38, -0.0, 50]),
    ],
)
def test_special_values_are_exact(lanes, name, x, wanted):
    found = computed(name, np.float32(x), lanes)
    assert found.tobytes() == np.float32(wanted).tobytes(), f"{name} of {x} is {found}"
    assert np.isnan(computed(name, np.float32([np.nan, -np.nan]), lanes)).all()


@pytest.mark.parametrize("name", WORST)
def test_a_number_knows_nothing_of_its_neighbours(name, rng):
    x = rng.standard_normal(64, dtype=np.float32)
    clean = computed(name, x, 16)
    x[::3] = np.nan, np.inf, -np.inf, *x[9::3]
    others = np.setdiff1d(np.arange(64), np.arange(0, 64, 3))
    assert computed(name, x, 16)[others].tobytes() == clean[others].tobytes()


def test_signs_and_order_are_kept():
    x = np.linspace(0, 12, 4801, dtype=np.float32)
    assert computed("tanh", -x, 16).tobytes() == (-computed("tanh", x, 16)).tobytes()
    coarse = np.linspace(-100, 88, 3001, dtype=np.float32)
    assert (np.diff(computed("exp", coarse, 16)) >= 0).all()


def test_exp_ends_where_normal_numbers_do():
    tiny = np.finfo(np.float32).tiny
    x = np.float32(-87.336) - np.arange(200, dtype=np.float32) * np.float32(2.0**-17)  # neighbours around the end
    found = computed("exp", x, 16)
    assert ((found == 0) | (found >= tiny)).all() and (found == 0).any() and (found > 0).any()
    assert ((found > 0) == (np.exp(x.astype(np.float64)) >= tiny)).all()


def test_the_measure_sees_an_error(monkeypatch):
    """The saboteur: a truth that is 4 ULP elsewhere."""
    monkeypatch.setitem(TRUTH, "tanh", lambda x: np.tanh(x) * (1 + 2.0**-21))
    x = np.linspace(-3, 3, 1001, dtype=np.float32)
    assert worst("tanh", 16, x)[0] > 2 * WORST["tanh"]
