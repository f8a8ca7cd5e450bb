"""Where the rows that embedding picks may be written."""

import numpy as np
import pytest

from tilewright.errors import UsageError
from tilewright.ops.core.ladder import using
from tilewright.ops.embedding import embedding, ladder

IDS = np.array([[2, 0, 1], [4, 4, 3]])


@pytest.fixture
def table(rng) -> np.ndarray:
    return rng.standard_normal((5, 20), dtype=np.float32)


@pytest.mark.parametrize("rung", [name for name in ladder.rungs if name.startswith("cpu.")])
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


def test_positions_are_added(table, rng):
    places, more = np.array([[0, 1, 2], [0, 1, 1]]), rng.standard_normal((3, 20), dtype=np.float32)
    expected = table[IDS] + more[places]
    assert np.array_equal(embedding(IDS, table, positions=places, position_table=more), expected)
    out = np.full((2, 3, 40), np.nan, np.float32)[:, :, ::2]
    assert embedding(IDS, table, positions=places, position_table=more, out=out) is out
    assert np.array_equal(out, expected)
    both, wanted = np.concatenate([table, more]), table[IDS[0]] + more[IDS[0]]  # out lies on the first table
    assert np.array_equal(embedding(IDS[0], both[:5], positions=IDS[0], position_table=both[5:], out=both[:3]), wanted)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("position_table is missing", {"positions": IDS}),
        ("positions is missing", {"position_table": np.zeros((9, 20), np.float32)}),
        (r"position_table has shape \(9, 3\)", {"positions": IDS, "position_table": np.zeros((9, 3), np.float32)}),
        (r"positions has shape \(3,\)", {"positions": IDS[0], "position_table": np.zeros((9, 20), np.float32)}),
        (r"positions\[1, 0\] is 4; the position_table", {"positions": IDS, "position_table": np.zeros((4, 20), "f4")}),
        ("positions is float64; integers", {"positions": IDS / 2, "position_table": np.zeros((9, 20), np.float32)}),
    ],
)
def test_positions_that_do_not_fit_are_named(words, arguments, table):
    with pytest.raises(UsageError, match=words):
        embedding(IDS, table, **arguments)
