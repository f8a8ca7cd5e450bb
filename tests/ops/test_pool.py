"""pool: beside NumPy, the same bits from every rung of the CPU, and what it refuses."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.errors import UsageError
from tilewright.ops.core.ladder import using
from tilewright.ops.pool import ladder, pool


def test_every_rung_of_the_cpu_adds_the_rows_in_their_order(rng):
    x = rng.standard_normal((60, 70), dtype=np.float32)
    begin, end = np.array([0, 7, 8, 20]), np.array([7, 8, 19, 60])
    wanted = np.stack(
        [np.add.reduce(x[i:j], axis=0, dtype=np.float64) / (j - i) for i, j in zip(begin, end, strict=True)]
    )
    for rung in ladder.rungs.values():
        if not rung.name.startswith("cpu."):
            continue
        with using(pool=rung.name):
            found = pool(x, begin, end)
            assert found.tobytes() == wanted.astype(np.float32).tobytes(), rung.name
            assert pool(x[8:19], [0], [11]).tobytes() == found[2].tobytes(), "a text alone"


def test_16_bits_are_widened(rng):
    x = rng.standard_normal((9, 5), dtype=np.float32).astype(ml_dtypes.bfloat16)
    found = pool(x, [0, 3], [3, 9])
    assert found.dtype == np.float32 and found.tobytes() == pool(x.astype(np.float32), [0, 3], [3, 9]).tobytes()


def test_what_does_not_fit_is_named():
    x = np.ones((4, 3), np.float32)
    for words, call in {
        "pool: x is float32 (3,); (rows, C) is wanted": lambda: pool(x[0], [0], [1]),
        "pool: x is float64": lambda: pool(x.astype(np.float64), [0], [1]),
        "pool: begin is float64 (1,); integers (n,) are wanted": lambda: pool(x, [0.5], [1]),
        "pool: begin has 1 elements, end 2": lambda: pool(x, [0], [1, 2]),
        "pool: range 1 is 2 to 5; ranges of at least one of the 4 rows of x": lambda: pool(x, [0, 2], [1, 5]),
        "pool: range 0 is 2 to 2": lambda: pool(x, [2], [2]),
        "pool: range 0 is -1 to 2": lambda: pool(x, [-1], [2]),
        "pool: out is": lambda: pool(x, [0], [2], out=np.empty((1, 4), np.float32)),
    }.items():
        with pytest.raises(UsageError) as error:
            call()
        assert words in str(error.value)
