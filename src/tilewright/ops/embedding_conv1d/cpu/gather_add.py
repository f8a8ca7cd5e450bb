"""From rows of the token table to features: add the rows of a window, take the maximum over positions.

out[s, branch * O + f] = relu(max over positions p of bias[f] + sum over taps t of row(t, ids[s, p + t])[f]).

The limit is latency: each addition loads another row, 1 MiB per sentence of the course's model, so whole rows run at
the bandwidth of memory. But a thousand sentences share many words. So the table is stored in slices of 32 columns, and
a task computes one slice for all sentences of the batch: its rows, about 100,000 of 128 bytes, stay in L3. It is slow
if sentences are few or share no words: then no row of a slice is read twice.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch
from tilewright.ops.embedding_conv1d.operands import Prepared

SLICE = 32  # columns stored together: 128 bytes, two cache lines, which the hardware prefetches as a pair
CUT = 16  # lanes of a copy
TOGETHER = 32  # sentences of a task of `locate`
INTEGERS = types.Array(types.int32, 2, "C", readonly=True)
TABLE = types.Array(types.int32, 2, "C")
SLICES = types.Array(types.float32, 3, "C", readonly=True)


@simd.kernel(
    types.void(INTEGERS, INTEGERS, TABLE, simd.INDICES, simd.TASKS, simd.OUTPUT), name="embedding_conv1d.locate"
)
def locate(ids, row_of, found, kernels, tasks, scratch):
    """found[s, i] = the table's row for pair i of sentence s: branch by branch, position by position, tap by tap.

    ids: int32 (B, L). row_of: int32 (groups, V), `TokenTable.row_of`. kernels: K of each branch. A task is TOGETHER
    sentences.
    """
    task = simd.draw(tasks)
    while task >= 0:
        for s in range(task * TOGETHER, min((task + 1) * TOGETHER, ids.shape[0])):
            group, i = 0, 0
            for branch in range(kernels.size):
                K = kernels[branch]
                for p in range(ids.shape[1] - K + 1):
                    for tap in range(K):
                        found[s, i] = row_of[group + tap, ids[s, p + tap]]
                        i += 1
                group += K
        task = simd.draw(tasks)


@simd.kernel(types.void(INTEGERS, TABLE, simd.INDICES, simd.TASKS, simd.OUTPUT), name="embedding_conv1d.count")
def count(ids, counts, kernels, tasks, scratch):
    """counts[group, v] = how often token v is under the tap of this group, in ids int32 (B, L), each below V.

    counts: int32 (groups, V). kernels: K of each branch. A task is a branch. Columns K - 1 to L - K are under every tap
    of it, so they are counted once. The K - 1 columns at either end are counted tap by tap.
    """
    B, L = ids.shape
    task = simd.draw(tasks)
    while task >= 0:
        K, group = kernels[task], 0
        for branch in range(task):
            group += kernels[branch]
        last = L - K  # tap t passes over the columns from t to last + t
        for token in range(counts.shape[1]):
            counts[group, token] = 0
        for s in range(B):
            for column in range(K - 1, last + 1):
                counts[group, ids[s, column]] += 1
        for tap in range(1, K):
            for token in range(counts.shape[1]):
                counts[group + tap, token] = counts[group, token]
        for s in range(B):
            for column in range(L):
                if column < K - 1 or column > last:
                    for tap in range(max(0, column - last), min(K, column + 1)):
                        counts[group + tap, ids[s, column]] += 1
        task = simd.draw(tasks)


@simd.kernel(
    types.void(simd.MATRIX, types.Array(types.float32, 3, "C"), types.int64, simd.TASKS, simd.OUTPUT),
    name="embedding_conv1d.cut",
)
def cut(rows, slices, first, tasks, scratch):
    """slices[i, first + r] = columns from i * SLICE on of rows[r], rows (R, O).

    A task is a slice, so threads touch new pages in parallel.
    """
    R, O = rows.shape
    task = simd.draw(tasks)
    while task >= 0:
        width = min(SLICE, O - task * SLICE)
        at = (task * slices.shape[1] + first) * SLICE
        for r in range(R):
            for c in range(0, SLICE, CUT):
                x = simd.load_first(rows, r * O + task * SLICE + c, width - c, CUT)
                simd.store(slices, at + r * SLICE + c, x)
        task = simd.draw(tasks)


def cut_rows(rows: np.ndarray, slices: np.ndarray, first: int) -> None:
    """Copy rows float32 (R, O) to the table's slices from row `first` on; columns beyond O become zeros."""
    launch(cut, rows, slices, first, tasks=len(slices), words=1)


ARGUMENTS = (INTEGERS, SLICES, simd.INPUT, simd.INDICES, simd.INDICES, simd.OUTPUT_2D)


@simd.kernel(types.void(*ARGUMENTS), name="embedding_conv1d.sums")
def sums(found, slices, bias, kernels, positions, out):
    """One feature after the other. found: of `locate`. kernels, positions: K and output positions of each branch."""
    branches = kernels.size
    O = out.shape[1] // branches
    for s in range(found.shape[0]):
        for f in range(O):
            pair = 0
            for branch in range(branches):
                best = np.float32(0)  # ReLU: nothing below zero wins
                for _ in range(positions[branch]):
                    total = bias[branch * O + f]
                    for _ in range(kernels[branch]):
                        total += slices[f // SLICE, found[s, pair], f % SLICE]
                        pair += 1
                    if total > best or total != total:  # a NaN wins; nothing is greater than it
                        best = total
                out[s, branch * O + f] = best


@functools.cache
def vector_kernel(lanes: int):
    """The kernel for vectors of `lanes` float32."""
    vectors = SLICE // lanes

    @simd.inline
    def sentence(found, slices, bias, kernels, positions, out, s, f):
        """Columns f to f + SLICE of all branches of sentence s."""
        slice_at = f * slices.shape[1]
        O = out.shape[1] // kernels.size
        pair, stride = s * found.shape[1], out.strides[0] // 4
        for branch in range(kernels.size):
            best = simd.block_zeros(1, vectors, lanes)
            start = simd.block_add(best, bias, branch * O + f, 0, O - f)
            for _ in range(positions[branch]):
                total = start
                for _ in range(kernels[branch]):
                    row = simd.fetch(found, pair)
                    total = simd.block_add(total, slices, slice_at + row * SLICE, 0, SLICE)
                    pair += 1
                best = simd.block_maximum(best, total)
            simd.block_store(best, out, s * stride + branch * O + f, 0, O - f)

    @simd.kernel(types.void(*ARGUMENTS, simd.TASKS, simd.OUTPUT), name=f"embedding_conv1d.gather_add.{lanes}")
    def gather_add(found, slices, bias, kernels, positions, out, tasks, scratch):
        """As `sums`, a vector at a time. A task is one slice of all sentences."""
        task = simd.draw(tasks)
        while task >= 0:
            for s in range(found.shape[0]):
                sentence(found, slices, bias, kernels, positions, out, s, task * SLICE)
            task = simd.draw(tasks)

    return gather_add


def occurrences(ids: np.ndarray, kernels: tuple[int, ...], vocabulary: int) -> np.ndarray:
    """int32 (groups, V): how often each token occurs under each tap in ids int32 (B, L), which must be below V.
    kernels: K of each branch."""
    counts = np.empty((sum(kernels), vocabulary), np.int32)
    launch(count, ids, counts, np.array(kernels, np.int64), tasks=len(kernels), words=1)
    return counts


def add_rows(ids: np.ndarray, table, out: np.ndarray, *, vectors: bool) -> None:
    """Features of ids int32 (B, L) from a `TokenTable` that has their rows; out float32 (B, branches * O)."""
    kernels = np.array(table.filters.kernels, np.int64)
    positions = ids.shape[1] - kernels + 1
    found = np.empty((len(ids), int((kernels * positions).sum())), np.int32)
    launch(locate, ids, table.row_of, found, kernels, tasks=-(-len(ids) // TOGETHER), words=1)
    arrays = (found, table.slices, table.filters.bias, kernels, positions, out)
    if vectors:
        launch(vector_kernel(cpu().lanes), *arrays, tasks=len(table.slices), words=1)
    else:
        sums(*arrays)


def add_from_table(ids: np.ndarray, prepared: Prepared, out: np.ndarray, *, vectors: bool) -> None:
    """out (B, branches * O) from ids int32 (B, L); the table computes missing rows first. vectors: use SIMD."""
    with prepared.state.lock:  # no other thread may add or move rows
        for first, end in prepared.state.batches(ids):
            add_rows(ids[first:end], prepared.state, out[first:end], vectors=vectors)
