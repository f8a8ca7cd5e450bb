"""Attention of long spans: the order of tiles."""

import numpy as np

from tilewright.ops.attention import span
from tilewright.ops.attention.spans import SORTED, by_size


def chunks(lengths: list[int], firsts: list[int]) -> list:
    """Spans of sequences one after the other, in slots of their own; each continues one of so many positions."""
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    return [span(i, first, n, at) for i, (first, n, at) in enumerate(zip(firsts, lengths, starts, strict=True))]


def test_tiles_of_most_keys_are_first_where_rows_are_few():
    """With many rows a sequence's tiles stay together."""
    few = np.array(chunks([300, 100, 512], [0, 500, 0]), np.int64)
    ((_, _, tiles),) = by_size(few, (64,))
    assert (np.diff(tiles[:, 1] + tiles[:, 2]) <= 0).all() and tiles[:, 2].sum() == 300 + 100 + 512
    many = np.array(chunks([SORTED, 300], [0, 0]), np.int64)
    ((_, _, tiles),) = by_size(many, (64,))
    assert tiles[0].tolist() == [1, 256, 44, SORTED + 256, 300] and (np.diff(tiles[:, 0]) <= 0).all()
