"""The figures of a job's summary have as many digits as mean something."""

import math

import pytest

from tilewright.cli._output import significant


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (30506151.717941, "30500000"), (251.084906, "251"), (5.337250, "5.34"), (0.0008056, "0.000806"),
        (999.6, "1000"), (0.0, "0"), (math.inf, "inf"),
    ],
)  # fmt: skip
def test_three_significant_digits_without_an_exponent(value, text):
    assert significant(value) == text
