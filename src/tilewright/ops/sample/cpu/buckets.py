"""A row of logits to a token, without a sort.

The running sum of the weights in falling order is wanted in one place alone. So the weights go into buckets by the
distance of their score from the best, 64 buckets from a power of two to the next, each with its sum; the bucket in
which the running sum reaches its target is found, and only its members are brought in order, those on the target's
side. Against `sorted`: no order but there, weights in vectors, and all threads draw rows. It loses where hundreds of
thousands of scores lie within a thousandth of the best.
"""

import functools
import math

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops._rows import ALONE, TASK
from tilewright.ops._threads import launch
from tilewright.ops.sample.cpu import room as memory
from tilewright.ops.sample.cpu.room import BUCKETS, LEAST_STEP, STEPS_BITS, key_of, place_of, room_of
from tilewright.ops.sample.cpu.select import best_of_row, insert_all, reach
from tilewright.ops.sample.operands import (
    BANNED_END,
    BEST,
    MIN_P,
    PENALTY,
    SEEN,
    SEEN_END,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    Rules,
    U,
)

MOST = 1e300  # of 1 / temperature: more would make 0 * infinity of the best score
NAN_BITS = 0x7FC00000  # no distance is at least a NaN
SURE = 1e-9  # share of the total: what rounding may do to a sum of a million weights is less than a thousandth of it

NUMBERS = types.Array(types.float64, 2, "C", readonly=True)
WORDS = types.Array(types.int64, 2, "C", readonly=True)
CHOSEN = types.Array(types.int64, 2, "C")
LOGARITHMS = types.Array(types.float64, 1, "C")


@functools.cache
def row_functions(lanes: int):
    """(load_row, highest, weigh, fill_buckets): passes over a row, for a vector width."""
    half = lanes // 2

    @simd.inline
    def load_row(logits, at, V, room):
        """A row becomes room.scores; whether all are finite."""
        zero, check = simd.zeros(lanes), simd.zeros(lanes)
        c = 0
        while c + lanes <= V:
            x = simd.load(logits, at + c, lanes)
            check = simd.fma(x, zero, check)  # NaN behind an infinity or a NaN
            simd.store(room.scores, c, simd.add(x, zero))  # no negative zero: bits are in the order of numbers
            c += lanes
        if c < V:
            x = simd.load_first(logits, at + c, V - c, lanes)
            check = simd.fma(x, zero, check)
            simd.store(room.scores, c, simd.add(x, zero))
            for i in range(V, c + lanes):
                room.scores[i] = -np.inf
        return simd.reduce_add(check) == 0

    @simd.inline
    def highest(room, m):
        """The largest score; none is NaN."""
        s = t = simd.splat(np.float32(-np.inf), lanes)
        c = 0
        while c + 2 * lanes <= m:
            x, y = simd.load(room.scores, c, lanes), simd.load(room.scores, c + lanes, lanes)
            s, t = simd.select_greater(x, s, x, s), simd.select_greater(y, t, y, t)
            c += 2 * lanes
        while c < m:
            x = simd.load(room.scores, c, lanes)
            s = simd.select_greater(x, s, x, s)
            c += lanes
        return simd.reduce_max(simd.select_greater(s, t, s, t))

    @simd.inline
    def weigh(room, m, top, temperature):
        """Distances from the best score `top`, weights exp(-distance / temperature), and their sum."""
        highest, wide = simd.splat(top, lanes), simd.splat_double(np.float64(top), half)
        inverse = simd.splat_double(min(1.0 / temperature, MOST), half)
        s = t = simd.splat_double(0.0, half)
        for c in range(0, m, lanes):
            simd.store(room.distances, c, simd.subtract(highest, simd.load(room.scores, c, lanes)))
            x, y = simd.load_double(room.scores, c, half), simd.load_double(room.scores, c + half, half)
            x = simd.exp_double(simd.multiply(simd.subtract(x, wide), inverse))
            y = simd.exp_double(simd.multiply(simd.subtract(y, wide), inverse))
            simd.store(room.weights, c, x)
            simd.store(room.weights, c + half, y)
            s, t = simd.add(s, x), simd.add(t, y)
        return simd.reduce_add_double(simd.add(s, t))

    @simd.inline
    def fill_buckets(room, m, least):
        """room.sums: the weights from `least` on, by their distance."""
        for b in range(BUCKETS):
            room.sums[b] = 0.0
        bound = simd.splat_double(least, half)
        for c in range(0, m, half):
            mask = simd.lanes_at_least(simd.load_double(room.weights, c, half), bound)
            if mask:
                for place in range(c, c + half):
                    weight = simd.fetch(room.weights, place)
                    room.sums[bucket_of(simd.fetch(room.steps, place))] += weight if weight >= least else 0.0

    return load_row, highest, weigh, fill_buckets


@simd.inline
def bucket_of(steps):
    """The bucket of a distance's bits."""
    return min(max((steps >> STEPS_BITS) - LEAST_STEP, 0), BUCKETS - 1)


@simd.inline
def edit_row(room, numbers, words, ids):
    """Repetition penalty and min_tokens; numbers, words: the row's."""
    penalty = numbers[PENALTY]
    for i in range(words[SEEN], words[SEEN_END]):
        room.distances[ids[i]] = room.scores[ids[i]]
    for i in range(words[SEEN], words[SEEN_END]):  # a token seen twice is penalised once: both writes are equal
        x = np.float64(room.distances[ids[i]])
        room.scores[ids[i]] = np.float32(x / penalty if x > 0 else x * penalty) + np.float32(0)
    for i in range(words[SEEN_END], words[BANNED_END]):
        room.scores[ids[i]] = -np.inf


@functools.cache
def draw_function(lanes: int):
    """draw(room, V, top, numbers, words), for a vector width."""
    _, _, weigh, fill_buckets = row_functions(lanes)
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

    @simd.inline
    def members(room, m, least, b):
        """The keys of bucket b's members become room.keys[:count]; gives count."""
        room.end_bits[0] = (b + LEAST_STEP) << STEPS_BITS if b else 0
        room.end_bits[1] = (b + 1 + LEAST_STEP) << STEPS_BITS if b < BUCKETS - 1 else NAN_BITS
        near, far = simd.broadcast(room.ends, 0, lanes), simd.broadcast(room.ends, 1, lanes)
        count = 0
        for c in range(0, m, lanes):
            x = simd.load(room.distances, c, lanes)
            mask = simd.lanes_at_least(x, near) & ~simd.lanes_at_least(x, far)
            while mask:
                place = c + simd.lowest_bit(mask)
                mask &= mask - 1
                if place < m and room.weights[place] >= least:
                    room.keys[count] = key_of(room.bits[place], place)
                    count += 1
        return count

    @simd.inline
    def locate(room, m, least, target):
        """(place, running sum) where the weights from `least` on, in falling order, reach the target; in buckets."""
        run, before, chosen = 0.0, 0.0, 0
        for b in range(BUCKETS):
            mass = room.sums[b]
            if mass > 0:
                chosen, before = b, run
                run += mass
                if run >= target:
                    break
        count = members(room, m, least, chosen)
        return reach(room.keys, count, room.weights, before, target)

    @simd.inline
    def least_weight(total, target, m):
        """Weights below it cannot keep the running sum of the others from the target."""
        left = total - target
        return left / (2 * m) if left > SURE * total else 0.0

    @simd.inline
    def draw(room, V, top, numbers, k):
        """The token of a row whose scores are in the room; k: top_k."""
        m = V
        if 0 < k < V:
            keep_best(room, V, k)
            m = k
        total = weigh(room, m, top, numbers[TEMPERATURE])
        u, p, least = numbers[U], numbers[TOP_P], 0.0
        mass, last = total, np.int64(-1)
        if p < 1:
            least = least_weight(total, p * total, m)
            fill_buckets(room, m, least)
            last, mass = locate(room, m, least, p * total)
        if numbers[MIN_P] > 0:  # the best weight is 1
            least = numbers[MIN_P]
            fill_buckets(room, m, least)
            mass = min(mass, total_of(room.sums))
        elif p == 1:
            least = least_weight(total, u * total, m)
            fill_buckets(room, m, least)
        place, _ = locate(room, m, least, u * mass)
        if last >= 0 and key_of(room.bits[last], last) < key_of(room.bits[place], place):
            place = last  # rounding never leads past the last that is kept
        return np.int64(room.places[place]) if m < V else place

    return draw


@simd.inline
def total_of(sums):
    """The sum of all buckets, in the order in which `locate` adds them."""
    total = 0.0
    for b in range(BUCKETS):
        total += sums[b]
    return total


@functools.cache
def sample_kernel(lanes: int):
    """The kernel for a vector width."""
    load_row, highest, weigh, _ = row_functions(lanes)
    draw, best = draw_function(lanes), best_of_row(lanes)

    @simd.inline
    def first_of(room, V, top):
        """The first place of the best score."""
        bound = simd.splat(top, lanes)
        for c in range(0, V, lanes):
            mask = simd.lanes_at_least(simd.load(room.scores, c, lanes), bound)
            if mask:
                return c + simd.lowest_bit(mask)
        return np.int64(0)

    @simd.inline
    def report(room, V, k, chosen, i):
        """(the logarithm of the sum of exp of the scores; their k best become chosen[i, 1:], best first)."""
        top = highest(room, V)
        logarithm = np.float64(top) + math.log(weigh(room, V, top, 1.0))
        k = min(k, V)
        if k > 0:
            best(room, V, k)
            insert_all(room.keys, 0, k)
            for j in range(k):
                chosen[i, 1 + j] = place_of(room.keys[j])
        return logarithm

    signature = types.void(simd.INPUT_2D, NUMBERS, WORDS, simd.INDICES, CHOSEN, LOGARITHMS, simd.PLAN, simd.OUTPUT)

    @simd.kernel(signature, name=f"sample.buckets.{lanes}")
    def sample_rows(logits, numbers, words, ids, chosen, logarithms, plan, scratch):
        """plan: next row, rows in a task. See `operands.Rules` for numbers, words and ids."""
        rows, V, step = logits.shape[0], logits.shape[1], plan[1]
        stride, room = logits.strides[0] // 4, room_of(scratch, V)
        first = simd.fetch_add(plan, 0, step)
        while first < rows:
            for i in range(first, min(first + step, rows)):
                finite = load_row(logits, i * stride, V, room)
                edited = words[i, SEEN] < words[i, BANNED_END]
                if edited:
                    edit_row(room, numbers[i], words[i], ids)
                top = highest(room, V)
                if not finite or not np.isfinite(top):
                    chosen[i, 0] = -1
                    continue
                if numbers[i, TEMPERATURE] == 0:
                    chosen[i, 0] = first_of(room, V, top)
                else:
                    chosen[i, 0] = draw(room, V, top, numbers[i], words[i, TOP_K])
                if words[i, BEST] >= 0:
                    load_row(logits, i * stride, V, room)
                    logarithms[i] = report(room, V, words[i, BEST], chosen, i)
            first = simd.fetch_add(plan, 0, step)

    return sample_rows


def sample(logits: np.ndarray, rules: Rules, chosen: np.ndarray, logarithms: np.ndarray) -> None:
    """The rung's run function."""
    n, V = logits.shape
    step = max(1, TASK // V)
    tasks = 1 if logits.size <= ALONE // 2 else -(-n // step)  # a score takes some 2 ns: twice an exp and its sum
    parts = logits, *rules, chosen, logarithms, np.array([0, step])
    launch(sample_kernel(cpu().lanes), *parts, tasks=tasks, words=memory.words(V))
