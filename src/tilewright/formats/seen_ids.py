"""Find repeated ids by 64-bit hashes: 8 bytes per id, whatever its length."""

from __future__ import annotations

import hashlib

import numpy as np

from tilewright.formats.records import Id


class SeenIds:
    """64-bit hashes of all ids up to now, in sorted runs. Two runs are merged when the last is at least half as
    large."""

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []

    def add(self, given: np.ndarray) -> np.ndarray:
        """bool (n,): which of `id_hashes` occurred before, here or in an earlier call. A missing id (None) never
        counts."""
        again = np.zeros(len(given), bool)
        known = np.flatnonzero(given)
        hashes, first = np.unique(given[known], return_index=True)
        old = np.zeros(len(hashes), bool)
        for run in self._runs:
            old |= run[np.minimum(np.searchsorted(run, hashes), len(run) - 1)] == hashes
        again[known] = True
        again[known[first[~old]]] = False
        if not old.all():
            self._runs.append(hashes[~old])
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            last = self._runs.pop()
            self._runs[-1] = np.sort(np.concatenate([self._runs[-1], last]))
        return again


def id_hashes(ids: list[Id | None]) -> np.ndarray:
    """uint64 (n,): 0 for None, and only for None."""
    return np.array([0 if id is None else _hash(id) for id in ids], np.uint64)


def _hash(id: Id) -> int:
    text = f"{type(id).__name__} {id}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") or 1
