"""sample without a sort: one token per row of logits (n, V).

Sampling needs only one point of the cumulative sum of the weights, from the largest weight down: the token at which the
sum reaches a random target. So the kernel adds the weights up in buckets, by the distance of their score from the best
one: 64 buckets from a power of two to the next. It finds the bucket in which the sum reaches the target, and partly
sorts only its members. The limit is the instructions of exp and
of the bucket sums. Changes from `ordered`: no sort, weights in vectors, and threads take rows. It is slow where
hundreds of thousands of scores are within a thousandth of the best.
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
from tilewright.ops.sample.cpu.select import best_of_row, compactor, insert_all
from tilewright.ops.sample.cpu.sums import bucket_functions, least_weight, total_of
from tilewright.ops.sample.cpu.workspace import index_of, key_of, scratch_words, workspace_of
from tilewright.ops.sample.operands import FLOAT, INTEGER, Rules

FLOATS, INTEGERS = (types.Array(kind, 2, "C", readonly=True) for kind in (types.float64, types.int64))
# the parts of `Rules` in a plain tuple: Numba takes 1.4 us more to recognise a named one, a tenth of a small call
RULES = types.Tuple((FLOATS, INTEGERS, simd.INDICES, FLOATS, INTEGERS))
CHOSEN = types.Array(types.int64, 2, "C")
LOGARITHMS = types.Array(types.float64, 1, "C")


@simd.inline
def rules_of(parts):
    """`Rules` of a plain tuple."""
    floats, integers, ids, shifts, ends = parts
    return Rules(floats, integers, ids, shifts, ends)


@functools.cache
def draw_function(lanes: int):
    """draw(workspace, V, top, floats, k), for a vector width."""
    _, _, weigh = row_functions(lanes)
    fill_buckets, locate = bucket_functions(lanes)
    compact_best = compactor(lanes)

    @simd.inline
    def draw(workspace, V, top, floats, k):
        """The token of a row whose scores are in the workspace. top: the best score. floats: the row's. k: top_k."""
        m = V
        if 0 < k < V:
            compact_best(workspace, V, k)
            m = k
        total = weigh(workspace, m, top, floats[FLOAT.temperature])
        u, p, least = floats[FLOAT.u], floats[FLOAT.top_p], 0.0
        mass, last = total, np.int64(-1)
        if p < 1:
            least = least_weight(total, p * total, m)
            fill_buckets(workspace, m, least)
            last, mass = locate(workspace, m, least, p * total)
        if floats[FLOAT.min_p] > 0:  # the best weight is 1
            least = floats[FLOAT.min_p]
            fill_buckets(workspace, m, least)
            mass = min(mass, total_of(workspace.sums))
        elif p == 1:
            least = least_weight(total, u * total, m)
            fill_buckets(workspace, m, least)
        found, _ = locate(workspace, m, least, u * mass)
        if last >= 0 and key_of(workspace.score_bits[last], last) < key_of(workspace.score_bits[found], found):
            found = last  # rounding never leads past the last token within top_p
        return np.int64(workspace.indices[found]) if m < V else found

    return draw


@functools.cache
def sample_kernel(lanes: int):
    """The kernel for a vector width."""
    load_row, highest, weigh = row_functions(lanes)
    draw, best = draw_function(lanes), best_of_row(lanes)

    @simd.inline
    def first_of(workspace, V, top):
        """The first index of the best score."""
        bound = simd.splat(top, lanes)
        for c in range(0, V, lanes):
            mask = simd.lanes_at_least(simd.load(workspace.scores, c, lanes), bound)
            if mask:
                return c + simd.lowest_bit(mask)
        return np.int64(0)

    @simd.inline
    def report(workspace, V, k, chosen, i):
        """The logarithm of the sum of exp of the scores. Stores the k best tokens in chosen[i, 1:], best first."""
        top = highest(workspace, V)
        logarithm = np.float64(top) + math.log(weigh(workspace, V, top, 1.0))
        k = min(k, V)
        if k > 0:
            best(workspace, V, k)
            insert_all(workspace.keys, 0, k)
            for j in range(k):
                chosen[i, 1 + j] = index_of(workspace.keys[j])
        return logarithm

    signature = types.void(simd.INPUT_2D, RULES, CHOSEN, LOGARITHMS, types.int64, simd.TASKS, simd.OUTPUT)

    @simd.kernel(signature, name=f"sample.buckets.{lanes}")
    def sample_rows(logits, rules, chosen, logarithms, step, tasks, scratch):
        """logits: float32 (n, V), rows contiguous. rules: the fields of `Rules`. Outputs: chosen, int64 (n, 1 + most),
        the chosen token and then the most likely ones; logarithms, float64 (n,), of the sum of exp."""
        given = rules_of(rules)
        rows, V = logits.shape
        stride, workspace = logits.strides[0] // 4, workspace_of(scratch, V)
        task = simd.draw(tasks)
        while task >= 0:
            for i in range(task * step, min((task + 1) * step, rows)):
                finite = load_row(logits, i * stride, V, workspace)
                row = given.integers[i]
                if len(given.ends):
                    shift_row(workspace, V, given, i)
                elif row[INTEGER.seen] < row[INTEGER.banned_end]:
                    edit_row(workspace, given, i)
                top = highest(workspace, V)
                if not finite or not np.isfinite(top):
                    chosen[i, 0] = -1
                    continue
                if given.floats[i, FLOAT.temperature] == 0:
                    chosen[i, 0] = first_of(workspace, V, top)
                else:
                    chosen[i, 0] = draw(workspace, V, top, given.floats[i], row[INTEGER.top_k])
                if row[INTEGER.best] >= 0:
                    load_row(logits, i * stride, V, workspace)
                    logarithms[i] = report(workspace, V, row[INTEGER.best], chosen, i)
            task = simd.draw(tasks)

    return sample_rows


def sample(logits: np.ndarray, rules: Rules, chosen: np.ndarray, logarithms: np.ndarray) -> None:
    """Fill chosen and logarithms; see `sample_rows` for the arguments."""
    n, V = logits.shape
    step = max(1, TASK // V)
    alone = logits.size <= ALONE // 2  # a score takes about 2 ns: twice an exp and its sum
    kernel, parts = sample_kernel(cpu().lanes), tuple(rules)
    launch(kernel, logits, parts, chosen, logarithms, step, tasks=-(-n // step), words=scratch_words(V), alone=alone)
