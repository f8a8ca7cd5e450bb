"""What the elementwise functions promise: a worst error in ULP over all of float32, and what they do with arguments."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.special import erfc

from compare import compare
from tilewright.errors import UsageError
from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import threads
from tilewright.ops.core.rows import ALONE
from tilewright.ops.elementwise import gelu, reference, relu, tanh
from tilewright.ops.elementwise.problem import WORST_ULP, ulp

FUNCTIONS = {
    "relu": (relu, reference.relu),
    "tanh": (tanh, reference.tanh),
    "gelu_tanh": (gelu, reference.gelu_tanh),
    "gelu": (lambda x: gelu(x, approximate="none"), lambda x: _gelu(np.maximum(np.float64(x), -40))),
}
AT_ONCE = 1 << 20


def _gelu(x):
    return x / 2 * erfc(-x / np.sqrt(2))


def worst_ulp(name: str, stride: int) -> tuple[float, float]:
    """(the worst error, where) over every `stride`th of the 2**32 bit patterns; both signs, every exponent."""
    function, truth = FUNCTIONS[name]
    worst, where = 0.0, 0.0
    for first in range(0, 2**32, AT_ONCE * stride):
        x = np.arange(first, min(first + AT_ONCE * stride, 2**32), stride).astype(np.uint32).view(np.float32)
        with np.errstate(invalid="ignore"):  # signalling NaNs
            actual, wanted = function(x).astype(np.float64), truth(x)
        finite = np.isfinite(wanted)
        same = (actual == wanted) | (np.isnan(actual) & np.isnan(wanted))
        assert (finite | same).all(), f"{name} of {x[~(finite | same)][0]!r}"
        assert np.isfinite(actual[finite]).all()
        errors = np.abs(actual[finite] - wanted[finite]) / ulp(wanted[finite])
        if errors.size and errors.max() > worst:
            worst, where = float(errors.max()), float(x[finite][errors.argmax()])
    return worst, where


@pytest.mark.parametrize("name", list(WORST_ULP))
def test_the_published_error_holds_and_is_not_padded(name):
    """Every 509th bit pattern, 8 million: within the figure, and the figure within 1 of what is found."""
    worst, where = worst_ulp(name, stride=509)
    assert worst <= WORST_ULP[name], f"{worst} at {where}"
    assert worst > WORST_ULP[name] - 1


@pytest.mark.long
@pytest.mark.parametrize("name", list(WORST_ULP))
def test_the_published_error_holds_for_every_float32(name):
    worst, where = worst_ulp(name, stride=1)
    assert worst <= WORST_ULP[name], f"{worst} at {where}"


def test_the_page_and_docstrings_publish_the_same_errors():
    page = (Path(__file__).parents[2] / "docs/learn/elementwise.md").read_text()
    table = dict(re.findall(r"^\| (\w+) \| ([\d.]+) \|$", page, re.MULTILINE))
    assert {name: float(figure) for name, figure in table.items()} == WORST_ULP
    said = " ".join((gelu.__doc__ + tanh.__doc__).split())
    assert f'{WORST_ULP["gelu_tanh"]} ULP for "tanh" and {WORST_ULP["gelu"]} ULP for "none"' in said
    assert f"{WORST_ULP['tanh']} ULP" in tanh.__doc__


@pytest.mark.parametrize("rung", ["cpu.naive", "cpu.vectors"])
def test_special_numbers(rung):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38, -3e38], np.float32)
    with using(elementwise=rung):
        for name, (function, truth) in FUNCTIONS.items():
            actual = function(x)
            compare(actual, truth(x), np.full(x.shape, 2.0**-149))
            assert np.signbit(actual[1]) or name == "relu"
            assert np.isnan(actual[4])
        assert np.signbit(gelu(x)[3]), "gelu(-inf) is not -0"
        assert np.signbit(gelu(x, approximate="none")[3]), "exact gelu(-inf) is not -0"


def test_the_two_forms_of_gelu_are_not_mixed_up():
    x = np.float32([-2.0, 2.0])
    assert gelu(x)[1] == pytest.approx(1.954597694, rel=1e-6)
    assert gelu(x, approximate="none")[1] == pytest.approx(1.954499736, rel=1e-6)


def test_numbers_know_nothing_of_their_neighbours(rng):
    """The same bits alone, in a vector's tail, behind a NaN, in place, and on two threads."""
    x = rng.standard_normal(2 * ALONE + 7, dtype=np.float32)
    for function, _ in FUNCTIONS.values():
        with threads(2):
            whole = function(x)
        poisoned = x.copy()
        poisoned[::2] = np.nan
        assert function(poisoned)[1::2].tobytes() == whole[1::2].tobytes()
        for at in (0, 5, ALONE, x.size - 1):
            assert function(x[at : at + 1]).tobytes() == whole[at : at + 1].tobytes()
    place = x.copy()
    assert gelu(place, out=place) is place
    assert place.tobytes() == gelu(x).tobytes()
    shifted = np.concatenate([x, x[:1]])
    gelu(shifted[:-1], out=shifted[1:])
    assert shifted[1:].tobytes() == gelu(x).tobytes()


def test_any_shape_and_layout(rng):
    x = rng.standard_normal((6, 5, 4), dtype=np.float32)
    wanted = tanh(x)
    assert tanh(x[0, 0, 0].reshape(())).shape == ()
    assert tanh(np.asfortranarray(x)).tobytes() == wanted.tobytes()
    assert tanh(x[::-1, :, ::2]).tobytes() == np.ascontiguousarray(wanted[::-1, :, ::2]).tobytes()
    out = np.zeros((4, 5, 6), np.float32)
    tanh(x, out=out.T)
    assert out.T.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: gelu(x, approximate="fast"), "approximate is 'fast'; it must be one of tanh, none"),
        (lambda x: tanh(x.astype(np.float64)), "x is float64"),
        (lambda x: relu(x, out=np.empty(4, np.float32)), r"relu: out is float32 \(4,\)"),
        (lambda x: relu(x, out=[0.0]), "relu: out is list"),
        (lambda x: gelu(x, out=np.broadcast_to(x[:1], x.shape)), "writeable"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(UsageError, match=message):
        call(np.zeros(3, np.float32))
