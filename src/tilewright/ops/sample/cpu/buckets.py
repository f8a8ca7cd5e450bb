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
from tilewright.ops.core.launch import launch
from tilewright.ops.core.rows import ALONE, TASK
from tilewright.ops.sample.cpu.passes import edit_row, row_functions, shift_row
from tilewright.ops.sample.cpu.room import key_of, place_of, room_of, words
from tilewright.ops.sample.cpu.select import best_of_row, insert_all, kept_of_row
from tilewright.ops.sample.cpu.sums import bucket_functions, least_weight, total_of
from tilewright.ops.sample.operands import NUMBER, WORD, Rules

NUMBERS, WORDS = (types.Array(kind, 2, "C", readonly=True) for kind in (types.float64, types.int64))
# a plain tuple of the parts of `Rules`: Numba takes 1.4 us more to recognise a named one, a tenth of a small call
RULES = types.Tuple((NUMBERS, WORDS, simd.INDICES, NUMBERS, WORDS))
CHOSEN = types.Array(types.int64, 2, "C")
LOGARITHMS = types.Array(types.float64, 1, "C")


@functools.cache
def draw_function(lanes: int):
    """draw(room, V, top, numbers, k), for a vector width."""
    _, _, weigh = row_functions(lanes)
    fill_buckets, locate = bucket_functions(lanes)
    keep_best = kept_of_row(lanes)

    @simd.inline
    def draw(room, V, top, numbers, k):
        """The token of a row whose scores are in the room; k: top_k."""
        m = V
        if 0 < k < V:
            keep_best(room, V, k)
            m = k
        total = weigh(room, m, top, numbers[NUMBER.temperature])
        u, p, least = numbers[NUMBER.u], numbers[NUMBER.top_p], 0.0
        mass, last = total, np.int64(-1)
        if p < 1:
            least = least_weight(total, p * total, m)
            fill_buckets(room, m, least)
            last, mass = locate(room, m, least, p * total)
        if numbers[NUMBER.min_p] > 0:  # the best weight is 1
            least = numbers[NUMBER.min_p]
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


@functools.cache
def sample_kernel(lanes: int):
    """The kernel for a vector width."""
    load_row, highest, weigh = row_functions(lanes)
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

    signature = types.void(simd.INPUT_2D, RULES, CHOSEN, LOGARITHMS, types.int64, simd.TASKS, simd.OUTPUT)

    @simd.kernel(signature, name=f"sample.buckets.{lanes}")
    def sample_rows(logits, rules, chosen, logarithms, step, tasks, scratch):
        """A task is `step` rows. rules: the parts of `operands.Rules`."""
        numbers, integers, ids, shifts, ends = rules
        rows, V = logits.shape
        stride, room = logits.strides[0] // 4, room_of(scratch, V)
        task = simd.draw(tasks)
        while task >= 0:
            for i in range(task * step, min((task + 1) * step, rows)):
                finite = load_row(logits, i * stride, V, room)
                if len(ends):
                    shift_row(room, V, numbers[i], integers[i], ids, shifts, ends[i])
                elif integers[i, WORD.seen] < integers[i, WORD.banned_end]:
                    edit_row(room, numbers[i], integers[i], ids)
                top = highest(room, V)
                if not finite or not np.isfinite(top):
                    chosen[i, 0] = -1
                    continue
                if numbers[i, NUMBER.temperature] == 0:
                    chosen[i, 0] = first_of(room, V, top)
                else:
                    chosen[i, 0] = draw(room, V, top, numbers[i], integers[i, WORD.top_k])
                if integers[i, WORD.best] >= 0:
                    load_row(logits, i * stride, V, room)
                    logarithms[i] = report(room, V, integers[i, WORD.best], chosen, i)
            task = simd.draw(tasks)

    return sample_rows


def sample(logits: np.ndarray, rules: Rules, chosen: np.ndarray, logarithms: np.ndarray) -> None:
    """The rung's run function."""
    n, V = logits.shape
    step = max(1, TASK // V)
    alone = logits.size <= ALONE // 2  # a score takes some 2 ns: twice an exp and its sum
    kernel, parts = sample_kernel(cpu().lanes), tuple(rules)
    launch(kernel, logits, parts, chosen, logarithms, step, tasks=-(-n // step), words=words(V), alone=alone)
