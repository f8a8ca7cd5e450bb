"""Partial selection without a sort: the best scores of a row, and the score at which the cumulative sum of the weights,
from the largest weight down, reaches a target.

Keys are those of `workspace`. Source of the selection: Hoare, "Algorithm 65: Find", 1961.
"""

import functools

import numpy as np

from tilewright import simd
from tilewright.ops.sample.cpu.workspace import BLOCK, index_of, key_of

FEW = 16  # keys that are sorted by insertion


@simd.inline
def pivot_of(keys, first, end):
    """The median of three of keys[first:end]; end - first is at least 3."""
    a, b, c = keys[first], keys[(first + end) >> 1], keys[end - 1]
    return max(min(a, b), min(max(a, b), c))


@simd.inline
def insert_all(keys, first, end):
    """Sort keys[first:end]."""
    for i in range(first + 1, end):
        key, j = keys[i], i
        while j > first and keys[j - 1] > key:
            keys[j] = keys[j - 1]
            j -= 1
        keys[j] = key


@simd.inline
def partition(keys, count, k):
    """Reorder keys[:count] so that its k least come first, in any order; 0 < k <= count."""
    first, end = 0, count
    while first < k < end:
        if end - first <= FEW:
            insert_all(keys, first, end)
            return
        pivot, j = pivot_of(keys, first, end), first
        for i in range(first, end):  # without a branch: half of them would be mispredicted
            key = keys[i]
            keys[i] = keys[j]
            keys[j] = key
            j += key < pivot
        if j >= k:
            end = j
        else:
            first = j


@simd.inline
def reach(keys, count, weights, before, target):
    """(index, cumulative sum) of the score at which the cumulative sum of the weights reaches the target.

    The sum begins with the largest weight. keys: the first `count` are searched. before: the sum of the weights before
    them. If rounding leaves the whole sum below the target, the last weight that is not 0 is returned.
    """
    first, end = 0, count
    while end - first > FEW:
        pivot, j, mass = pivot_of(keys, first, end), first, 0.0
        for i in range(first, end):
            key = keys[i]
            keys[i] = keys[j]
            keys[j] = key
            mass += weights[index_of(key)] if key < pivot else 0.0
            j += key < pivot
        if before + mass >= target:
            end = j
        else:
            before += mass
            first = j
    insert_all(keys, first, end)
    found = index_of(keys[first])
    for i in range(first, end):
        index = index_of(keys[i])
        if weights[index] > 0:
            found = index
        before += weights[index]
        if before >= target:
            break
    return found, before


@functools.cache
def best_of_row(lanes: int):
    """best(workspace, m, k), for a vector width."""

    @simd.inline
    def highest_bound(workspace, m, k):
        """A score that k of m scores reach: the k-th largest maximum of a block; -inf for few blocks."""
        blocks = m // BLOCK
        if k > blocks:
            return np.float32(-np.inf)
        for block in range(blocks):
            largest = simd.load(workspace.scores, block * BLOCK, lanes)
            for c in range(block * BLOCK + lanes, (block + 1) * BLOCK, lanes):
                x = simd.load(workspace.scores, c, lanes)
                largest = simd.select_greater(x, largest, x, largest)
            workspace.distances[block] = simd.reduce_max(largest)
            workspace.keys[block] = key_of(workspace.distance_bits[block], block)
        partition(workspace.keys, blocks, k)
        worst = workspace.keys[0]
        for i in range(1, k):
            worst = max(worst, workspace.keys[i])
        return workspace.distances[index_of(worst)]

    @simd.inline
    def best(workspace, m, k):
        """workspace.keys[:k] become the keys of the k best of m scores, unordered; 0 < k <= m. Overwrites distances."""
        bound = simd.splat(highest_bound(workspace, m, k), lanes)
        count = 0
        for c in range(0, m, lanes):
            mask = simd.lanes_at_least(simd.load(workspace.scores, c, lanes), bound)
            while mask:
                index = c + simd.lowest_bit(mask)
                mask &= mask - 1
                if index < m:
                    workspace.keys[count] = key_of(workspace.score_bits[index], index)
                    count += 1
        partition(workspace.keys, count, k)

    return best


@functools.cache
def compactor(lanes: int):
    """compact_best(workspace, V, k), for a vector width."""
    best = best_of_row(lanes)

    @simd.inline
    def compact_best(workspace, V, k):
        """Move the k best scores of V to the front, in the order of the row; workspace.indices says where they were."""
        best(workspace, V, k)
        worst = workspace.keys[0]
        for i in range(1, k):
            worst = max(worst, workspace.keys[i])
        bound = simd.broadcast(workspace.scores, index_of(worst), lanes)
        count = 0
        for c in range(0, V, lanes):
            mask = simd.lanes_at_least(simd.load(workspace.scores, c, lanes), bound)
            while mask:
                index = c + simd.lowest_bit(mask)
                mask &= mask - 1
                if index < V and key_of(workspace.score_bits[index], index) <= worst:
                    workspace.scores[count] = workspace.scores[index]
                    workspace.indices[count] = index
                    count += 1
        for c in range(k, (k + lanes - 1) // lanes * lanes):
            workspace.scores[c] = -np.inf

    return compact_best
