"""Results of batches come in order, each whole, while the next is computed."""

import numpy as np
import pytest

from gpu import PLACE
from tilewright.runtime.staging import Staging

torch = pytest.importorskip("torch")


def squares(sizes, slots=2):
    """[(batch, its results)] of doubled numbers and row numbers, and the order in which work was started."""
    doubled = [torch.full((8, 3), torch.nan, device=PLACE) for _ in range(slots)]
    row = [torch.zeros(8, dtype=torch.int64, device=PLACE) for _ in range(slots)]
    started = []

    def start(slot, batch):
        started.append(slot)
        numbers = torch.from_numpy(batch).to(PLACE)
        doubled[slot][: len(batch)] = numbers * 2
        row[slot][: len(batch)] = torch.arange(len(batch), device=PLACE)
        return len(batch)

    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((size, 3), dtype=np.float32) for size in sizes]
    found = Staging(list(zip(doubled, row, strict=True))).run(iter(batches), start)
    return batches, found, started


@pytest.mark.parametrize("sizes", [[], [8], [8, 8, 8, 8, 3], [1, 8, 2, 5, 5, 5, 5, 1]])
@pytest.mark.parametrize("slots", [2, 3])
def test_every_batch_has_its_own_results(sizes, slots):
    batches, found, started = squares(sizes, slots)
    count = 0
    for given, (batch, (doubled, row)) in zip(batches, found, strict=True):
        assert batch is given
        assert np.array_equal(doubled, 2 * given) and np.array_equal(row, np.arange(len(given)))
        count += 1
    assert count == len(sizes) and started == [i % slots for i in range(count)]


def test_the_next_batch_is_started_before_results_are_read():
    _, found, started = squares([8, 8, 8])
    next(found)
    assert started == [0, 1]
    next(found)
    assert started == [0, 1, 0]


def test_an_error_of_a_batch_comes_out():
    def start(slot, batch):
        raise ValueError("this batch")

    with pytest.raises(ValueError, match="this batch"):
        next(Staging([[torch.zeros(2)], [torch.zeros(2)]]).run([1], start))
