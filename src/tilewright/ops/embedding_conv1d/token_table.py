"""The token table on the CPU: a cache of rows, one per pair of token and tap (one position in the filter).

A convolution over embeddings is linear in each token: y[position] = bias + sum over taps of E[token] @ W[tap]. The row
E[token] @ W[tap] is the same at every position, so it is computed once and cached. Only
pairs that occur are computed: a word that only occurs first in a sentence needs the first tap of each branch and no
other. A batch never needs more rows than the direct convolution has products, so the table never does more work.

When rows no longer fit, the least used are evicted, and a batch that needs more rows than the table holds is split in
two. None of this changes a result: a row's bits depend on the token and the tap alone. Neural language models call this
first-layer pre-computation (Devlin et al. 2014).
"""

import threading

import numpy as np

from tilewright.errors import ResourceError
from tilewright.ops.core.memory import empty
from tilewright.ops.embedding_conv1d.cpu.gather_add import SLICE, cut_rows, occurrences
from tilewright.ops.embedding_conv1d.memory import row_bytes
from tilewright.ops.embedding_conv1d.operands import Filters
from tilewright.ops.matmul import matmul, prepare

PRODUCT_ROWS = 4096  # tokens of a product: their rows, 16 MiB at 1024 filters, stay in L3 until they are cut


def capacity_of(
    vocabulary: int, O: int, kernels: tuple[int, ...], *, length: int, memory: int | None
) -> tuple[int, int]:
    """(most rows of a table, bytes of a row). Arguments are those of TokenTable. Raises ResourceError if `memory` does
    not hold the rows of one sentence."""
    each, most = row_bytes(O), vocabulary * sum(kernels)
    capacity = most if memory is None else min(most, memory // each)
    one_sentence = sum(K * (length - K + 1) for K in kernels)
    if capacity < min(one_sentence, most):
        raise ResourceError(
            f"a token table of {memory} bytes holds {capacity} rows; a sentence may need {one_sentence}",
            remedy=f"allow at least {one_sentence * each} bytes",
        )
    return capacity, each


class TokenTable:
    """Rows of O float32 for each token and group; a group is one tap of one branch.

    table: float32 (V, C) embeddings. filters: the branches. length: tokens per sentence. memory: most bytes of the
    rows; None: no limit. slices: float32 (ceil(O / SLICE), capacity, SLICE), row r in slices[:, r]. row_of: int32
    (groups, V), index of the row, -1 if it does not exist. uses: how often each pair occurred. Raises ResourceError if
    `memory` does not hold the rows of one sentence.
    """

    def __init__(self, table: np.ndarray, filters: Filters, *, dtype: str, length: int, memory: int | None = None):
        self.table, self.filters = table, filters
        self.groups = filters.taps()
        self.packed = [prepare(filters.weights[b][:, :, tap].T, dtype=dtype) for b, tap in self.groups]
        self.capacity, each = capacity_of(len(table), filters.O, filters.kernels, length=length, memory=memory)
        slices = each // (4 * SLICE)
        self.slices = empty((slices, self.capacity, SLICE))  # pages are allocated when a row is written
        self.row_of = np.full((len(self.groups), len(table)), -1, np.int32)
        self.uses = np.zeros((len(self.groups), len(table)), np.int64)
        self.used = 0
        self.built = 0  # rows computed in all; more than `used` if some were evicted
        self.lock = threading.RLock()  # a caller holds it from its first batch to the end of its last one

    def precompute(self, ids: np.ndarray) -> None:
        """Compute the missing rows of sentences ids (B, L) in large products, if the table holds them all."""
        with self.lock:
            missing = (self._counts(ids) > 0) & (self.row_of < 0)
            if self.used + int(missing.sum()) <= self.capacity:
                self._build(missing)

    def batches(self, ids: np.ndarray):
        """Yield (first, end): sentences of ids (B, L) whose rows all exist until the next batch is requested."""
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
                self._evict(needed, count)
            self.uses += counts
            self._build(missing)
            yield first, end

    def _counts(self, ids: np.ndarray) -> np.ndarray:
        return occurrences(ids, self.filters.kernels, len(self.table))

    def _evict(self, needed: np.ndarray, missing: int) -> None:
        """Free at least `missing` rows: the needed rows stay, and the most used others fill half of the rest."""
        present = self.row_of >= 0
        stay = present & needed
        spare = (self.capacity - missing - int(stay.sum())) // 2
        others = np.flatnonzero(present & ~needed)
        if spare > 0 and others.size:
            best = np.argsort(self.uses.reshape(-1)[others], kind="stable")[::-1][:spare]
            stay.reshape(-1)[others[best]] = True
        staying = np.flatnonzero(stay)
        old = self.row_of.reshape(-1)[staying]
        for one_slice in self.slices:  # a copy of one slice at a time, not of the table
            one_slice[: len(old)] = one_slice[old]
        self.row_of.fill(-1)
        self.row_of.reshape(-1)[staying] = np.arange(len(staying), dtype=np.int32)
        self.used = len(staying)

    def _build(self, missing: np.ndarray) -> None:
        """Multiply the missing tokens' embeddings by each tap's weights, and cut the rows into slices."""
        most = min(PRODUCT_ROWS, int(missing.sum(axis=1).max(initial=0)))
        products = empty((most, self.filters.O))  # reused: first-touch page faults cost more than the writes
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
