"""From rows of the token table to features: add the rows of a window, keep the largest sum.

out[s, branch * O + f] = relu(max over positions p of bias[f] + sum over taps t of row(t, ids[s, p + t])[f]).

Every addition reads a new row, 1 MiB a sentence of the course's model, and few sentences in a row share a word: read
row by row this runs at the rate of memory. But a thousand sentences share many. So the table lies in slices of 32
columns, and a task takes one slice for all sentences of the batch: what they need of it, some 100,000 rows of 128
bytes, stays in L3. That loses its point where sentences are few, or share no words: nothing of a slice is met twice.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch
from tilewright.ops.embedding_conv1d.operands import Prepared

SLICE = 32  # columns that lie together: 128 bytes, two lines, which the hardware fetches as a pair
CUT = 16  # lanes of a copy
INTEGERS = types.Array(types.int32, 2, "C", readonly=True)
SLICES = types.Array(types.float32, 3, "C", readonly=True)


@simd.kernel(
    types.void(INTEGERS, INTEGERS, types.Array(types.int32, 2, "C"), simd.INDICES), name="embedding_conv1d.locate"
)
def locate(ids, row_of, found, kernels):
    """found[s, i] = the row of pair i of sentence s: branch by branch, position by position, tap by tap."""
    for s in range(ids.shape[0]):
        group, i = 0, 0
        for branch in range(kernels.size):
            K = kernels[branch]
            for p in range(ids.shape[1] - K + 1):
                for tap in range(K):
                    found[s, i] = row_of[group + tap, ids[s, p + tap]]
                    i += 1
            group += K


@simd.kernel(
    types.void(simd.MATRIX, types.Array(types.float32, 3, "C"), types.int64, simd.TASKS, simd.OUTPUT),
    name="embedding_conv1d.cut",
)
def cut(rows, slices, first, tasks, scratch):
    """slices[i, first + r] = columns i * SLICE onwards of row r.

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
    """Put rows float32 (R, O) into the table's slices from row `first` on; columns beyond O become zeros."""
    launch(cut, rows, slices, first, tasks=len(slices), words=1)


ARGUMENTS = (INTEGERS, SLICES, simd.INPUT, simd.INDICES, simd.INDICES, simd.OUTPUT_2D)


@simd.kernel(types.void(*ARGUMENTS), name="embedding_conv1d.sums")
def sums(found, slices, bias, kernels, positions, out):
    """Scalar: one feature after the other. kernels, positions: K and output positions of every branch."""
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
    """The kernel for a vector width."""
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
        """A task is one slice of all sentences."""
        task = simd.draw(tasks)
        while task >= 0:
            for s in range(found.shape[0]):
                sentence(found, slices, bias, kernels, positions, out, s, task * SLICE)
            task = simd.draw(tasks)

    return gather_add


def add_rows(ids: np.ndarray, table, out: np.ndarray, *, vectors: bool) -> None:
    """Features of ids int32 (B, L) from a `TokenTable` that has their rows; out float32 (B, branches * O)."""
    kernels = np.array(table.filters.kernels, np.int64)
    positions = ids.shape[1] - kernels + 1
    found = np.empty((len(ids), int((kernels * positions).sum())), np.int32)
    locate(ids, table.row_of, found, kernels)
    arrays = (found, table.slices, table.filters.bias, kernels, positions, out)
    if vectors:
        launch(vector_kernel(cpu().lanes), *arrays, tasks=len(table.slices), words=1)
    else:
        sums(*arrays)


def add_from_table(ids: np.ndarray, prepared: Prepared, out: np.ndarray, *, vectors: bool) -> None:
    """out (B, branches * O) from ids (B, L), whose missing rows the table computes first."""
    with prepared.state.lock:  # no other thread adds rows or moves them meanwhile
        for first, end in prepared.state.batches(ids):
            add_rows(ids[first:end], prepared.state, out[first:end], vectors=vectors)
