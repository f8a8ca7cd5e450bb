"""Parts of an order without a sort: the best of a row, and where a sum of weights in falling order reaches a target.

A key is an int64: above, bits that fall where the score rises; below, the place in the row. Keys of a row all differ,
and in their order a row's scores fall, equal ones by rising place. Source of the selection: Hoare, "Find", 1961.
"""

import functools

import numpy as np

from tilewright import simd
from tilewright.ops.sample.cpu.room import BLOCK, key_of, place_of

FEW = 16  # keys that are sorted by insertion


@simd.inline
def pivot_of(keys, first, end):
    """The median of three of keys[first:end], of which there are at least three."""
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
def bring_forward(keys, count, k):
    """Exchange keys[:count] until its k least stand in front, in any order; 0 < k <= count."""
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
    """(place, sum) of the first of keys[:count] at which `before` and the weights in falling order reach the target.

    If rounding keeps the sum below it: of the last weight that is not 0.
    """
    first, end = 0, count
    while end - first > FEW:
        pivot, j, mass = pivot_of(keys, first, end), first, 0.0
        for i in range(first, end):
            key = keys[i]
            keys[i] = keys[j]
            keys[j] = key
            mass += weights[place_of(key)] if key < pivot else 0.0
            j += key < pivot
        if before + mass >= target:
            end = j
        else:
            before += mass
            first = j
    insert_all(keys, first, end)
    found = place_of(keys[first])
    for i in range(first, end):
        place = place_of(keys[i])
        if weights[place] > 0:
            found = place
        before += weights[place]
        if before >= target:
            break
    return found, before


@functools.cache
def best_of_row(lanes: int):
    """best(room, m, k), for a vector width."""

    @simd.inline
    def highest_bound(room, m, k):
        """A score that at least k of m scores reach: the k-th of the largest of blocks; -inf for few blocks."""
        blocks = m // BLOCK
        if k > blocks:
            return np.float32(-np.inf)
        for block in range(blocks):
            largest = simd.load(room.scores, block * BLOCK, lanes)
            for c in range(block * BLOCK + lanes, (block + 1) * BLOCK, lanes):
                x = simd.load(room.scores, c, lanes)
                largest = simd.select_greater(x, largest, x, largest)
            room.distances[block] = simd.reduce_max(largest)
            room.keys[block] = key_of(room.steps[block], block)
        bring_forward(room.keys, blocks, k)
        worst = room.keys[0]
        for i in range(1, k):
            worst = max(worst, room.keys[i])
        return room.distances[place_of(worst)]

    @simd.inline
    def best(room, m, k):
        """The keys of the k best of m scores become room.keys[:k], in any order; 0 < k <= m. Distances are lost."""
        bound = simd.splat(highest_bound(room, m, k), lanes)
        count = 0
        for c in range(0, m, lanes):
            mask = simd.lanes_at_least(simd.load(room.scores, c, lanes), bound)
            while mask:
                place = c + simd.lowest_bit(mask)
                mask &= mask - 1
                if place < m:
                    room.keys[count] = key_of(room.bits[place], place)
                    count += 1
        bring_forward(room.keys, count, k)

    return best


@functools.cache
def kept_of_row(lanes: int):
    """keep_best(room, V, k), for a vector width."""
    best = best_of_row(lanes)

    @simd.inline
    def keep_best(room, V, k):
        """The k best scores close up, in their order; room.places says where they were. `best` has found them."""
        best(room, V, k)
        worst = room.keys[0]
        for i in range(1, k):
            worst = max(worst, room.keys[i])
        bound = simd.broadcast(room.scores, place_of(worst), lanes)
        count = 0
        for c in range(0, V, lanes):
            mask = simd.lanes_at_least(simd.load(room.scores, c, lanes), bound)
            while mask:
                place = c + simd.lowest_bit(mask)
                mask &= mask - 1
                if place < V and key_of(room.bits[place], place) <= worst:
                    room.scores[count] = room.scores[place]
                    room.places[count] = place
                    count += 1
        for c in range(k, (k + lanes - 1) // lanes * lanes):
            room.scores[c] = -np.inf

    return keep_best
