"""A rung that is not in its ladder: with other options, or with a kernel of the caller's own."""

import numpy as np
import pytest

from tilewright.errors import Refused, UsageError
from tilewright.ops.core.ladder import Rung, forced, trying
from tilewright.ops.core.needs import on
from tilewright.ops.softmax import softmax


def filled(x, out, *, value=0.0):
    out[...] = value


def test_a_kernel_of_ones_own_runs_in_place_of_the_ladders():
    rung = Rung("mine.filled", idea="constant", kernel=filled, options={"value": 3.0}, swept={"value": (3.0,)})
    x = np.zeros((2, 5), np.float32)
    with trying("softmax", rung):
        assert np.array_equal(softmax(x), np.full((2, 5), 3, np.float32))
    with trying("softmax", rung.varied(value=7.0)):
        assert np.array_equal(softmax(x), np.full((2, 5), 7, np.float32))
    assert np.allclose(softmax(x), 0.2)


def test_an_option_that_is_not_swept_is_refused_by_name():
    with pytest.raises(UsageError, match="has no option tile to sweep; it has value"):
        Rung("mine.filled", idea="constant", kernel=filled, swept={"value": (1.0,)}).varied(tile=3)


def test_its_needs_hold_and_a_job_does_not_take_it():
    rung = Rung("mine.filled", idea="constant", kernel=filled, needs=(on("cuda", "float32"),))
    with trying("softmax", rung):
        with pytest.raises(Refused, match=r"softmax\.mine\.filled refuses"):
            softmax(np.zeros((2, 5), np.float32))
        with pytest.raises(Refused, match=r"a job cannot run softmax\.mine\.filled"):
            forced()
