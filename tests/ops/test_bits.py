"""A row's bits do not depend on its batch: alone, among others, at any position, on one thread or two."""

import numpy as np
import pytest

from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import threads
from tilewright.ops.matmul import Problem, ladder, matmul, prepare

K, N = 901, 70
RUNGS = [
    (rung.name, dtype)
    for rung in ladder.rungs.values()
    for dtype in ("float32", "bfloat16")
    if not any("dtype" in why for why in rung.refuses(Problem(N, K, dtype)))
]


def differing_rows(product, rows: np.ndarray, rng: np.random.Generator) -> int:
    """How many of the rows get other bits in some batch than alone. product(rows (M, K)) -> (M, N)."""
    alone = [product(row[None])[0].tobytes() for row in rows]
    differing = set()
    for size in (2, 3, 11, 13, 64, len(rows)):
        chosen = rng.permutation(len(rows))[:size]
        for count in (1, 2):
            with threads(count):
                batch = product(rows[chosen])
            differing |= {int(i) for i, row in zip(chosen, batch, strict=True) if row.tobytes() != alone[i]}
    return len(differing)


@pytest.mark.parametrize(("name", "dtype"), RUNGS)
def test_every_matmul_rung(name, dtype, rng):
    if why := ladder.rungs[name].refuses(Problem(N, K, dtype)):
        pytest.skip(f"{name}: {'; '.join(why)}")
    rows = rng.standard_normal((200, K), dtype=np.float32)
    with using(matmul=name):
        weights = prepare(rng.standard_normal((K, N), dtype=np.float32), dtype=dtype)
        assert differing_rows(lambda x: matmul(x, weights, activation="relu"), rows, rng) == 0


def test_a_kernel_that_looks_at_the_batch_is_caught(rng):
    """The saboteur: it splits K where the number of rows says."""
    rows, weights = rng.standard_normal((50, K), dtype=np.float32), rng.standard_normal((K, N), dtype=np.float32)

    def batch_dependent(x):
        middle = 100 + len(x)
        return np.stack([row[:middle] @ weights[:middle] + row[middle:] @ weights[middle:] for row in x])

    assert differing_rows(batch_dependent, rows, rng) > 0


def test_a_poisoned_row_stays_alone(rng):
    rows, weights = rng.standard_normal((30, K), dtype=np.float32), rng.standard_normal((K, N), dtype=np.float32)
    clean = matmul(rows, weights)
    rows[3], rows[17] = np.nan, np.inf
    dirty = matmul(rows, weights)
    others = np.setdiff1d(np.arange(30), [3, 17])
    assert clean[others].tobytes() == dirty[others].tobytes()
    assert np.isnan(dirty[3]).all() and not np.isfinite(dirty[17]).any()
