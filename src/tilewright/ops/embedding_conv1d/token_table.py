"""The token table: which rows (token, tap) exist, where they lie, and which to make next.

A convolution over embeddings is linear in each token: y[position] = bias + sum over taps of E[token] @ W[tap]. The row
E[token] @ W[tap] is the same wherever the token stands, so it is computed once and looked up after that. Only pairs
that occur are computed: a word that is only ever first in its sentence needs the first tap of each branch and no other.
A batch alone never needs more rows than the direct convolution has products, so there is no batch for which the table
does more work.

Rows are kept for the next batch as long as they fit. When they do not, the half that was used least is dropped, and a
batch that needs more rows than there is room for is cut in two. None of this changes a result: a row's bits depend on
the token and the tap alone. Known from neural language models as first-layer pre-computation (Devlin et al. 2014).
"""

import threading

import numpy as np

from tilewright.errors import ResourceError
from tilewright.ops.core.memory import empty
from tilewright.ops.embedding_conv1d.cpu.gather_add import SLICE, cut_rows
from tilewright.ops.embedding_conv1d.operands import Filters
from tilewright.ops.matmul import matmul, prepare

PRODUCT_ROWS = 4096  # tokens multiplied at a time: their rows, 16 MiB at 1024 filters, wait in L3 to be cut into slices


def room(vocabulary: int, O: int, kernels: tuple[int, ...], *, length: int, memory: int | None) -> tuple[int, int]:
    """(rows that a table holds at most, bytes of one). Arguments as TokenTable's. Raises ResourceError if not even one
    sentence's rows fit."""
    row_bytes, most = 4 * SLICE * -(-O // SLICE), vocabulary * sum(kernels)
    capacity = most if memory is None else min(most, memory // row_bytes)
    one_sentence = sum(K * (length - K + 1) for K in kernels)
    if capacity < min(one_sentence, most):
        raise ResourceError(
            f"a token table of {memory} bytes holds {capacity} rows; a sentence may need {one_sentence}",
            hint=f"allow at least {one_sentence * row_bytes} bytes",
        )
    return capacity, row_bytes


class TokenTable:
    """Rows of O floats for (token, group), a group being one tap of one branch.

    table: float32 (V, C) embeddings. filters: the branches. length: tokens a sentence. memory: bytes that rows may
    occupy; None: as many as there are. slices: float32 (ceil(O / SLICE), capacity, SLICE), row r's columns in slices[:,
    r]. row_of: int32 (groups, V), the number of a row, -1 if it does not exist. Raises ResourceError if not even one
    sentence's rows fit.
    """

    def __init__(self, table: np.ndarray, filters: Filters, *, dtype: str, length: int, memory: int | None = None):
        self.table, self.filters = table, filters
        self.groups = filters.taps()
        self.packed = [prepare(filters.weights[b][:, :, tap].T, dtype=dtype) for b, tap in self.groups]
        self.capacity, row_bytes = room(len(table), filters.O, filters.kernels, length=length, memory=memory)
        slices = row_bytes // (4 * SLICE)
        self.slices = empty((slices, self.capacity, SLICE))  # memory is taken when a row is written, not here
        self.row_of = np.full((len(self.groups), len(table)), -1, np.int32)
        self.uses = np.zeros((len(self.groups), len(table)), np.int32)
        self.used = 0
        self.built = 0  # rows computed since the start; more than `used` where some were dropped
        self.lock = threading.RLock()  # held by a caller from its first batch to the end of its last one

    def precompute(self, ids: np.ndarray) -> None:
        """Compute the rows that sentences ids (B, L) will need, if there is room for all: one large product instead
        of many small."""
        with self.lock:
            missing = (self._counts(ids) > 0) & (self.row_of < 0)
            if self.used + int(missing.sum()) <= self.capacity:
                self._build(missing)

    def batches(self, ids: np.ndarray):
        """Yield (first, end): sentences of ids (B, L) whose rows all exist until the next batch is asked for."""
        pending = [(0, len(ids))]
        while pending:
            first, end = pending.pop()
            counts = self._counts(ids[first:end])
            needed = counts > 0
            missing = needed & (self.row_of < 0)
            count = int(missing.sum())
            if self.used + count > self.capacity:
                if int(needed.sum()) > self.capacity // 2 and end - first > 1:
                    middle = (first + end) // 2
                    pending += [(middle, end), (first, middle)]
                    continue
                self._drop(needed, count)
            self.uses += counts
            self._build(missing)
            yield first, end

    def _counts(self, ids: np.ndarray) -> np.ndarray:
        """int32 (groups, V): how often each pair of token and tap occurs in ids (B, L)."""
        counts = np.empty(self.row_of.shape, np.int32)
        for group, (branch, tap) in enumerate(self.groups):
            positions = ids.shape[1] - self.filters.kernels[branch] + 1
            counts[group] = np.bincount(ids[:, tap : tap + positions].reshape(-1), minlength=len(self.table))
        return counts

    def _drop(self, needed: np.ndarray, room: int) -> None:
        """Keep the rows that are needed and the most used others, so that `room` more fit and half of the rest is
        free."""
        present = self.row_of >= 0
        keep = present & needed
        spare = (self.capacity - room - int(keep.sum())) // 2
        others = np.flatnonzero(present & ~needed)
        if spare > 0 and others.size:
            best = np.argsort(self.uses.reshape(-1)[others], kind="stable")[::-1][:spare]
            keep.reshape(-1)[others[best]] = True
        kept = np.flatnonzero(keep)
        old = self.row_of.reshape(-1)[kept]
        for one_slice in self.slices:  # a copy of one slice at a time, not of the table
            one_slice[: len(old)] = one_slice[old]
        self.row_of.fill(-1)
        self.row_of.reshape(-1)[kept] = np.arange(len(kept), dtype=np.int32)
        self.used = len(kept)

    def _build(self, missing: np.ndarray) -> None:
        """The missing tokens' embeddings by each tap's weights, cut into slices."""
        room = min(PRODUCT_ROWS, int(missing.sum(axis=1).max(initial=0)))
        products = empty((room, self.filters.O))  # one for all: fresh memory costs more than a product's store
        for group, packed in enumerate(self.packed):
            tokens = np.flatnonzero(missing[group])
            for start in range(0, tokens.size, PRODUCT_ROWS):
                some = tokens[start : start + PRODUCT_ROWS]
                rows = matmul(self.table, packed, rows=some, out=products[: some.size])
                cut_rows(rows, self.slices, self.used)
                self.row_of[group, some] = np.arange(self.used, self.used + some.size, dtype=np.int32)
                self.used += some.size
            self.built += tokens.size


def prepare_table(table: np.ndarray, filters: Filters, *, dtype: str, length: int, memory: int | None) -> TokenTable:
    """An empty token table for these weights."""
    return TokenTable(table, filters, dtype=dtype, length=length, memory=memory)
