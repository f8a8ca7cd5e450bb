"""Ids given twice, in one shard or in two: the same places whatever is sorted at a time, in little memory."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.runtime.jobs import ids


class Noted:
    """As much of a JobDirectory as the search asks for: shards of hashes."""

    def __init__(self, shards):
        self.shards, self.manifest = shards, SimpleNamespace(cut=SimpleNamespace(shards=len(shards)))

    def record(self, number):
        return SimpleNamespace(notes_size=8 * len(self.shards[number]), records=len(self.shards[number]))

    def notes(self, number):
        return self.shards[number].astype("<u8").tobytes()


class Never:
    """A Stop that nobody asks for."""

    def check(self):
        pass


def places(shards):
    return {number: sorted(found.tolist()) for number, found in ids.given_before(Noted(shards), Never())}


@pytest.mark.parametrize("most", [1, 7, 64, 1 << 20])
def test_every_place_but_the_first(monkeypatch, rng, most):
    """Of 100 files; a hash of 0 is no id."""
    monkeypatch.setattr(ids, "MOST_HASHES", most)
    for _ in range(100):
        values = rng.integers(1, 200)
        shards = [rng.integers(0, values, rng.integers(0, 30)).astype(np.uint64) for _ in range(rng.integers(1, 8))]
        seen, expected = set(), {}
        for number, shard in enumerate(shards):
            for place, value in enumerate(shard.tolist()):
                if value and value in seen:
                    expected.setdefault(number, []).append(place)
                seen.add(value)
        assert places(shards) == expected, shards


def test_memory_of_many_ids(rng):
    """At most 20 bytes an id of those that are sorted at a time, and no more for four times as many."""
    peaks = []
    for count in (ids.MOST_HASHES, 4 * ids.MOST_HASHES):
        noted = Noted(np.split(rng.integers(1, 1 << 63, count, np.uint64), 32))
        tracemalloc.start()
        assert not list(ids.given_before(noted, Never()))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 20 * ids.MOST_HASHES + (4 << 20), peaks
