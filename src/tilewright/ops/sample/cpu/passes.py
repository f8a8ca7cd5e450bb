"""Passes over a row in vectors: load it, find its best score, compute its weights; and edits of its scores."""

import functools

import numpy as np

from tilewright import simd
from tilewright.ops.sample.operands import END, FLOAT, INTEGER, SHIFT

MOST = 1e300  # limit of 1 / temperature: infinity times the best score's distance, 0, would be NaN


@functools.cache
def row_functions(lanes: int):
    """(load_row, highest, weigh): passes over a row, for a vector width."""
    half = lanes // 2

    @simd.inline
    def load_row(logits, at, V, workspace):
        """Copy a row of logits to workspace.scores. Returns True if all are finite."""
        zero, check = simd.zeros(lanes), simd.zeros(lanes)
        c = 0
        while c + lanes <= V:
            x = simd.load(logits, at + c, lanes)
            check = simd.fma(x, zero, check)  # NaN after an infinity or a NaN
            simd.store(workspace.scores, c, simd.add(x, zero))  # no negative zero: bits have the order of scores
            c += lanes
        if c < V:
            x = simd.load_first(logits, at + c, V - c, lanes)
            check = simd.fma(x, zero, check)
            simd.store(workspace.scores, c, simd.add(x, zero))
            for i in range(V, c + lanes):
                workspace.scores[i] = -np.inf
        return simd.reduce_add(check) == 0

    @simd.inline
    def highest(workspace, m):
        """The largest of m scores; none is NaN."""
        s = t = simd.splat(np.float32(-np.inf), lanes)
        c = 0
        while c + 2 * lanes <= m:
            x, y = simd.load(workspace.scores, c, lanes), simd.load(workspace.scores, c + lanes, lanes)
            s, t = simd.select_greater(x, s, x, s), simd.select_greater(y, t, y, t)
            c += 2 * lanes
        while c < m:
            x = simd.load(workspace.scores, c, lanes)
            s = simd.select_greater(x, s, x, s)
            c += lanes
        return simd.reduce_max(simd.select_greater(s, t, s, t))

    @simd.inline
    def weigh(workspace, m, top, temperature):
        """Distances from the best score `top`, weights exp(-distance / temperature), and their sum."""
        highest, wide = simd.splat(top, lanes), simd.splat_double(np.float64(top), half)
        inverse = simd.splat_double(min(1.0 / temperature, MOST), half)
        s = t = simd.splat_double(0.0, half)
        for c in range(0, m, lanes):
            simd.store(workspace.distances, c, simd.subtract(highest, simd.load(workspace.scores, c, lanes)))
            x, y = simd.load_double(workspace.scores, c, half), simd.load_double(workspace.scores, c + half, half)
            x = simd.exp_double(simd.multiply(simd.subtract(x, wide), inverse))
            y = simd.exp_double(simd.multiply(simd.subtract(y, wide), inverse))
            simd.store(workspace.weights, c, x)
            simd.store(workspace.weights, c + half, y)
            s, t = simd.add(s, x), simd.add(t, y)
        return simd.reduce_add_double(simd.add(s, t))

    return load_row, highest, weigh


@simd.inline
def edit_row(workspace, rules, i):
    """Apply repetition penalty and banned tokens of row i to its scores. rules: `Rules`."""
    scores, saved, penalty = workspace.scores, workspace.distances, rules.floats[i, FLOAT.penalty]
    row, ids = rules.integers[i], rules.ids
    for j in range(row[INTEGER.seen], row[INTEGER.seen_end]):
        saved[ids[j]] = scores[ids[j]]
    for j in range(row[INTEGER.seen], row[INTEGER.seen_end]):  # a token seen twice: both writes are equal
        x = np.float64(saved[ids[j]])
        scores[ids[j]] = np.float32(x / penalty if x > 0 else x * penalty) + np.float32(0)
    for j in range(row[INTEGER.seen_end], row[INTEGER.banned_end]):
        scores[ids[j]] = -np.inf


@simd.inline
def shift_row(workspace, V, rules, i):
    """As `edit_row`, with shifts and allowed tokens."""
    scores, saved, penalty = workspace.scores, workspace.distances, rules.floats[i, FLOAT.penalty]
    row, ends, ids, shifts = rules.integers[i], rules.ends[i], rules.ids, rules.shifts
    for j in range(row[INTEGER.seen], ends[END.shifted_end]):
        saved[ids[j]] = scores[ids[j]]
    for j in range(row[INTEGER.seen], row[INTEGER.seen_end]):  # a token seen twice: both writes are equal
        x = np.float64(saved[ids[j]]) + shifts[j, SHIFT.before]
        x = x / penalty if x > 0 else x * penalty
        scores[ids[j]] = np.float32(x + shifts[j, SHIFT.after]) + np.float32(0)
    for j in range(row[INTEGER.banned_end], ends[END.shifted_end]):
        x = np.float64(saved[ids[j]]) + shifts[j, SHIFT.before]
        scores[ids[j]] = np.float32(x + shifts[j, SHIFT.after]) + np.float32(0)
    for j in range(row[INTEGER.seen_end], row[INTEGER.banned_end]):
        scores[ids[j]] = -np.inf
    if ends[END.shifted_end] < ends[END.allowed_end]:
        for j in range(ends[END.shifted_end], ends[END.allowed_end]):
            saved[ids[j]] = scores[ids[j]]
        for token in range(V):
            scores[token] = -np.inf
        for j in range(ends[END.shifted_end], ends[END.allowed_end]):
            scores[ids[j]] = saved[ids[j]]
