"""Where the rows that embedding picks may be written."""

import numpy as np
import pytest

from tilewright.errors import UsageError
from tilewright.ops._ladder import using
from tilewright.ops.embedding import embedding, ladder

IDS = np.array([[2, 0, 1], [4, 4, 3]])


@pytest.fixture
def table(rng) -> np.ndarray:
    return rng.standard_normal((5, 20), dtype=np.float32)


@pytest.mark.parametrize("rung", ladder.rungs)
def test_out_may_lie_anywhere(rung, table):
    """Every second column, every second row, turned, a field of a structured array: only out is written."""
    expected = table[IDS]
    record = np.zeros(expected.shape[:-1], [("tag", "u1"), ("value", "<f4", expected.shape[-1:]), ("end", "u1")])
    wide = np.zeros((2, 6, 40), np.float32)
    outs = (wide[:, ::2, ::2], wide[:, 3:, 20:], wide[:, 2::-1, 19::-1], record["value"])
    with using(embedding=rung):
        for out in outs:
            wide[...] = 0
            assert embedding(IDS, table, out=out) is out
            assert np.array_equal(out, expected)
            out[...] = 0
            assert not wide.any()
    assert not (record["tag"].any() or record["end"].any())


def test_out_may_lie_on_the_table(table):
    expected, out = table[IDS[0]], table[:3]
    assert np.array_equal(embedding(IDS[0], table, out=out), expected)


@pytest.mark.parametrize("out", [[], np.empty((2, 3, 20)), np.broadcast_to(np.float32(0), (2, 3, 20))])
def test_an_out_that_does_not_fit_is_refused(out, table):
    with pytest.raises(UsageError, match=r"embedding: out is .* shape \(2, 3, 20\) is wanted"):
        embedding(IDS, table, out=out)
