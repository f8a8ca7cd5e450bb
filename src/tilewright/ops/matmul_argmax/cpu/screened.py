"""Screening in 8 bits: a product costs a quarter of a float32 one, in time and in bytes, and rules out nearly all
columns; the few that are left are computed in float32 and compared.

A row x is t q + d, a column w is s r + e, with q and r of 8 bits. Then x . w = t s (q . r) + d . (s r) + x . e, and by
Cauchy-Schwarz the last two are at most |d| |s r| + |x| |e|: a bound, not an estimate, so the largest column is always
among those whose upper end reaches the largest lower end. To |e| the rounding of the float32 sums is added, so that the
answer is the argmax of those sums, ties included. Where more than KEPT columns are left (columns nearly alike), and
where a product of norms might leave the range of float32, the row is undecided and computed in full; it loses there,
where a row is paid for twice.

The instruction multiplies unsigned by signed bytes: q is stored plus 128, and 128 times the sum of r, taken off again.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.core.launch import launch
from tilewright.ops.core.memory import empty, zeros
from tilewright.ops.gemm.cpu.loops import MC, TILE, Product, columns_of, product_kernel
from tilewright.ops.gemm.cpu.pack import TILINGS
from tilewright.ops.gemm.operands import Rows
from tilewright.ops.matmul_argmax.cpu import logits
from tilewright.ops.matmul_argmax.operands import Prepared, Screen

LEVELS = 127
CHUNK = 1024  # columns quantised at a time: whole panels, and a few MiB
GROUP_KEPT = 510  # candidates a row and group of columns, with their upper ends
FIELDS = 2 + 2 * GROUP_KEPT  # of a group: candidates, largest lower end, then (column, upper end) of each
KEPT = 256  # candidates a row that are computed in float32


class ColumnRows(NamedTuple):
    """Rows of `Screen.columns`: for each column of b the step of its levels, the offset and norm of its levels, and the
    norm of what rounding to levels lost."""

    step: int
    offset: int
    norm: int
    loss: int


ROW = ColumnRows(*range(4))
HEIGHT = 12  # rows of a tile; behind them is room for a vector
SMALLEST, LARGEST = 1e-15, 1e15  # norms of rows and columns whose products float32 holds with all digits
SAFETY = 1.001  # of norms, far above their own rounding
EPS32 = float(np.finfo(np.float32).eps)


def screen(b: np.ndarray) -> Screen | None:
    """b (K, N) in 8 bits, a step a column; None where a column is not finite, or the longest too long or short."""
    rows, NR = np.ascontiguousarray(b.T), TILINGS[16].NR  # (N, K)
    N, K = rows.shape
    panels = zeros((-(-N // NR), K // 4, NR), np.int32)
    columns = zeros((4, len(panels) * NR))
    for i in range(0, N, CHUNK):
        part, at = rows[i : i + CHUNK], slice(i, min(i + CHUNK, N))
        step, levels, lost = rounded_to_levels(part)
        with np.errstate(over="ignore", invalid="ignore"):
            columns[ROW.step, at] = step
            columns[ROW.offset, at] = (128 * levels.sum(axis=1, dtype=np.int32)).view(np.float32)
            columns[ROW.norm, at] = step * norms(levels.astype(np.float32))
            columns[ROW.loss, at] = norms(lost) + np.float32((K + 12) * EPS32) * norms(
                part
            )  # of the sums, of `lost` itself
        words = zeros((-(-len(part) // NR) * NR, K // 4), np.int32)
        words[: len(part)] = levels.view(np.int32)
        panels[i // NR : i // NR + len(words) // NR] = words.reshape(-1, NR, K // 4).swapaxes(1, 2)
    longest = columns[ROW.norm].max()
    if not (np.isfinite(columns[[ROW.step, ROW.norm, ROW.loss]]).all() and SMALLEST < longest < LARGEST):
        return None
    return Screen(panels.reshape(-1).view(np.float32), columns, rows)


def rounded_to_levels(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(step float32 (n,), levels int8 (n, K), rows - step * levels float32 (n, K)) of float32 (n, K)."""
    step = np.maximum(np.abs(rows).max(axis=1) / np.float32(LEVELS), np.finfo(np.float32).tiny)
    with np.errstate(over="ignore", invalid="ignore"):  # a row that is not finite is not screened
        levels = np.rint(rows / step[:, None])
        return step, levels.astype(np.int8), rows - step[:, None] * levels


def norms(rows: np.ndarray) -> np.ndarray:
    """Euclidean norm of each row, float32, rounded up; numbers are squared in float64, where none is lost."""
    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64, casting="same_kind")
    with np.errstate(over="ignore", invalid="ignore"):  # a norm that is not finite is looked for
        return (np.sqrt(squares) * SAFETY).astype(np.float32)


def quantised(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(words of four bytes q + 128, as float32 (M, K / 4); float32 (M, 3): step, norm of the loss, norm of the row)."""
    step, levels, lost = rounded_to_levels(a)
    size = norms(a)
    words = (levels.astype(np.int16) + 128).astype(np.uint8).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return words, np.stack([step, norms(lost) + np.float32(2 * EPS32) * size, size], axis=1)


@functools.cache
def keep_candidates(lanes: int):
    """The inline function that ends a tile of int32 dot products: out collects the columns that may be the largest."""

    @simd.inline
    def append(found, at, column, upper):
        """One more candidate of the group at `at`; where there is no room, only their number grows."""
        n = int(simd.fetch(found, at))
        if n < GROUP_KEPT:
            simd.put(found, at + 2 + 2 * n, np.float32(column))
            simd.put(found, at + 3 + 2 * n, upper)
        simd.put(found, at, np.float32(min(n, GROUP_KEPT) + 1))

    @simd.inline
    def finish_tile(tile, target, i, j, first, NC):
        """As that of `gemm.cpu.epilogue.finisher`. NC: columns in a group."""
        (scratch, at, width, height, columns), found = tile, target.out
        moments, fields = target.residual, target.bias  # of the rows, of the columns
        padded = fields.size // 4
        for r in range(height):
            group = (i + r) * (found.strides[0] // 4) + j // NC * FIELDS
            m = (i + r) * 3
            step, lost = simd.broadcast(moments, m, lanes), simd.broadcast(moments, m + 1, lanes)
            norm, lower = simd.broadcast(moments, m + 2, lanes), simd.fetch(found, group + 1)
            for c in range(0, columns, lanes):
                k = j + c
                dot = simd.integers_less(
                    simd.load(scratch, at + r * width + c, lanes), simd.load(fields, ROW.offset * padded + k, lanes)
                )
                middle = simd.multiply(dot, simd.multiply(step, simd.load(fields, k, lanes)))
                reach = simd.multiply(norm, simd.load(fields, ROW.loss * padded + k, lanes))
                reach = simd.fma(lost, simd.load(fields, ROW.norm * padded + k, lanes), reach)
                upper = simd.add(middle, reach)
                if simd.reduce_max(upper) >= lower:
                    simd.store(scratch, at + r * width + c, upper)
                    simd.store(scratch, at + HEIGHT * width, simd.subtract(middle, reach))
                    for i_ in range(min(lanes, columns - c)):
                        ends = simd.fetch(scratch, at + r * width + c + i_)
                        lower = max(lower, simd.fetch(scratch, at + HEIGHT * width + i_))
                        if ends >= lower:
                            append(found, group, k + i_, ends)
            simd.put(found, group + 1, lower)

    return finish_tile


class Candidates(NamedTuple):
    """K, and the groups of columns that each have candidates."""

    K: int
    groups: int


@functools.cache
def decide_kernel(lanes: int):
    """The kernel that computes the candidates of a row, `lanes` at a time, in float32."""

    @simd.inline
    def gather_candidates(found, at, groups, K, starts, first):
        """starts[first:] = where the weights of each candidate begin; gives their number, KEPT + 1 for too many."""
        lower, count = np.float32(-np.inf), 0
        for g in range(groups):
            lower = max(lower, found[at + g * FIELDS + 1])
        for g in range(groups):
            n = int(found[at + g * FIELDS])
            if n > GROUP_KEPT:
                return KEPT + 1
            for c in range(n):
                place = at + g * FIELDS + 2 + 2 * c
                if found[place + 1] >= lower:
                    if count == KEPT:
                        return KEPT + 1
                    starts[first + count] = int(found[place]) * K
                    count += 1
        return count

    @simd.inline
    def compare(a, a_at, weights, starts, first, count, K, scratch):
        """(column, value) of the largest of `count` candidates, the lowest column of equals."""
        column, value, last = -1, np.float32(-np.inf), first + count - 1
        for c in range(0, count, lanes):
            total = simd.zeros(lanes)
            for p in range(0, K, lanes):
                square = simd.block_zeros(lanes, 1, lanes)
                square = simd.block_transpose(simd.block_gather(square, weights, starts, first + c, last, p))
                total = simd.block_dot_rows(total, square, a, a_at + p)
            simd.store(scratch, 0, total)
            for i in range(min(lanes, count - c)):
                found = starts[first + c + i] // K
                if scratch[i] > value or (scratch[i] == value and found < column):
                    column, value = found, scratch[i]
        return column, value

    signature = types.void(
        simd.INPUT, simd.INPUT, simd.INPUT, types.Array(types.int64, 1, "C"), simd.record(Candidates), simd.OUTPUT,
        simd.TASKS, simd.OUTPUT,
    )  # fmt: skip

    @simd.kernel(signature, name=f"matmul_argmax.decide.{lanes}")
    def decide(a, weights, found, starts, sizes, values, tasks, scratch):
        """A task is one row. starts (rows * KEPT): the first entry of a row becomes the answer, -1 for none."""
        K, groups = sizes.K, sizes.groups
        row = simd.draw(tasks)
        while row >= 0:
            count = gather_candidates(found, row * groups * FIELDS, groups, K, starts, row * KEPT)
            column, value = -1, np.float32(0)
            if count <= KEPT:
                column, value = compare(a, row * K, weights, starts, row * KEPT, count, K, scratch)
            starts[row * KEPT], values[row] = column, value
            row = simd.draw(tasks)

    return decide


def best(a: np.ndarray, screen: Screen) -> tuple[np.ndarray, np.ndarray]:
    """(column, value) of each row; column -1 where there were too many candidates."""
    lanes, (M, K), N = 16, a.shape, len(screen.rows)
    a = np.ascontiguousarray(a)
    words, moments = quantised(a)
    origin, starts, step = Rows(words, None).addresses()
    NC = columns_of(M, N, TILINGS[lanes].NR)
    groups, steps = -(-N // NC), K // 4
    found = empty((M, groups * FIELDS))
    found[:, 0::FIELDS], found[:, 1::FIELDS] = 0, -np.inf
    job = Product(M, N, K=steps, depth=steps, step=step, MC=MC, KC=steps, NC=NC, argument=NC)
    scratch = TILE + MC * (steps + lanes) + lanes * lanes
    arrays = origin, starts, screen.panels, found, screen.columns.reshape(-1), moments
    kernel = product_kernel("dot_quads", lanes, keep_candidates)
    launch(kernel, *arrays, job, tasks=-(-M // MC) * groups, words=scratch)
    unsafe = ~((moments[:, 2] > SMALLEST) & (moments[:, 2] < LARGEST))  # a NaN is unsafe, too
    candidates, values = np.empty(M * KEPT, np.int64), np.empty(M, np.float32)
    arrays = a.reshape(-1), screen.rows.reshape(-1), found.reshape(-1), candidates
    launch(decide_kernel(lanes), *arrays, Candidates(K, groups), values, tasks=M, words=lanes)
    return np.where(unsafe, -1, candidates[::KEPT]), values


def search(a: np.ndarray, prepared: Prepared, index: np.ndarray, value: np.ndarray) -> None:
    """index, value (M,) = the largest element of each row of a @ prepared.weights.

    Rows that 8 bits leave undecided, and weights that cannot be screened, are computed in full by `logits`.
    """
    if prepared.screen is None:
        logits.search(a, prepared, index, value)
        return
    index[...], value[...] = best(a, prepared.screen)
    undecided = np.flatnonzero(index < 0)  # too many candidates: the weights are too alike for 8 bits
    if len(undecided):
        columns, values = np.empty(len(undecided), np.int64), np.empty(len(undecided), np.float32)
        logits.search(a[undecided], prepared, columns, values)
        index[undecided], value[undecided] = columns, values
