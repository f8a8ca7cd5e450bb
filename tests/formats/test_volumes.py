"""Boxes of a volume fill it, on the boundaries of what its file stores together."""

import numpy as np

from tilewright.formats import volumes
from tilewright.formats.volumes import aligned_boxes, boxes


def test_boxes_fill_and_do_not_overlap(rng, monkeypatch):
    monkeypatch.setattr(volumes, "PIECE_BYTES", 100)
    for _ in range(200):
        shape = tuple(int(n) for n in rng.integers(1, 12, 3))
        start = tuple(int(n) for n in rng.integers(0, 12, 3))
        unit = tuple(int(n) for n in rng.integers(1, 6, 3))
        most = int(rng.integers(1, 400))
        count = np.zeros(shape, int)
        for box in aligned_boxes(start, shape, unit, most):
            count[box] += 1
            size = [s.stop - s.start for s in box]
            assert np.prod(size) <= max(most, np.prod(unit))
            for a, s, u, n in zip(start, box, unit, shape, strict=True):
                assert (a + s.start) % u == 0 or s.start == 0
                assert (a + s.stop) % u == 0 or s.stop == n
        assert (count == 1).all()
        for axis in (0, 2):
            count[...] = 0
            for box in boxes(shape, 4, axis=axis):
                count[box] += 1
            assert (count == 1).all()
