"""One infinity or NaN is found at any index."""

import numpy as np
import pytest

from tilewright.ops.core.finite import TASK, all_finite
from tilewright.ops.core.launch import threads


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("size", [1, 15, 17, TASK - 1, TASK, 3 * TASK + 5])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_infinity_or_nan(count, size, value):
    array = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    array[0] = np.finfo(np.float32).max
    with threads(count):
        assert all_finite(array)
        for at in {0, size // 2, size - 1}:
            changed = array.copy()
            changed[at] = value
            assert not all_finite(changed)
            assert not all_finite(np.repeat(changed, 2)[::2])


def test_an_empty_array_is_finite():
    assert all_finite(np.zeros((0, 3), np.float32))
