"""Which sentences of a call are computed when: unseen tokens cost a second pass, and only then."""

from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.backends.token_lookup import CpuLookup, CudaLookup, token_lookup

IDS = np.arange(12, dtype=np.int32).reshape(6, 2)


class Table:
    """Stands in for a GPU's token table that holds so many rows. built: rows that were computed."""

    device_slots = "on the GPU"

    def __init__(self, rows=100):
        self.holds_all, self.tokens, self.built, self.cleared = rows >= 12, set(), 0, 0

    def precompute(self, ids):
        new = set(ids.ravel().tolist()) - self.tokens
        self.tokens |= new
        self.built += len(new)

    def batches(self, ids, size):
        for first in range(0, len(ids), size):
            yield first, min(first + size, len(ids)), "slots"

    def clear(self):
        self.cleared += 1


def lookup_of(table):
    return CudaLookup(SimpleNamespace(state=table))


def spans_of(lookup, ids, lowest):
    """The spans of each pass; `lowest` becomes that of the table's tokens, as a GPU writes it."""
    found = []
    for spans in lookup.passes(ids, lowest, 4):
        found.append(list(spans))
        if lookup.table is not None:
            lowest[:] = [-(not set(row) <= lookup.table.tokens) for row in ids.tolist()]
    return found


def test_unseen_tokens_are_computed_before_the_first_pass():
    lookup = lookup_of(Table())
    assert spans_of(lookup, IDS, np.zeros(6, np.int32)) == [[(0, 6)]]
    assert lookup.table.built == 12 and not lookup.settled


def test_a_settled_table_is_not_checked_until_a_sentence_has_an_unseen_token():
    lookup = lookup_of(Table())
    for settled in (False, True):
        spans_of(lookup, IDS[:3], np.zeros(3, np.int32))
        assert lookup.settled == settled
    lookup.table.precompute = lambda ids, compute=lookup.table.precompute: (checked.append(len(ids)), compute(ids))
    checked = []
    assert spans_of(lookup, IDS[:2], np.zeros(2, np.int32)) == [[(0, 2)]]
    assert checked == [] and lookup.settled
    assert spans_of(lookup, IDS, np.zeros(6, np.int32)) == [[(0, 6)], [(0, 6)]]
    assert checked == [6] and not lookup.settled


def test_a_table_that_does_not_hold_all_tokens_gives_spans():
    lookup = lookup_of(Table(rows=5))
    assert spans_of(lookup, IDS, np.zeros(6, np.int32)) == [[(0, 4), (4, 6)]]
    assert not lookup.settled


def test_a_rung_without_a_table():
    lookup = lookup_of(SimpleNamespace(rows="of filters"))
    assert spans_of(lookup, IDS, np.full(6, -1, np.int32)) == [[(0, 6)]]
    lookup.forget()


def test_a_forgotten_table_is_not_settled():
    lookup = lookup_of(Table())
    lookup.settled = True
    lookup.forget()
    assert lookup.table.cleared == 1 and not lookup.settled


def test_weights_decide_where_tokens_are_looked_up(monkeypatch):
    pytest.importorskip("torch")
    on_cpu = SimpleNamespace(table=np.zeros((3, 2), np.float32), state=None)
    assert isinstance(token_lookup(on_cpu), CpuLookup)
    assert isinstance(token_lookup(SimpleNamespace(table="a tensor", state=Table())), CudaLookup)
    assert token_lookup(on_cpu).located(IDS, None) is IDS
