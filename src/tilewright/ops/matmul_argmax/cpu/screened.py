"""Screening in 8 bits: products of bytes read a quarter of the memory of float32 ones, take less time, and rule out
nearly all columns. The remaining candidates are computed in float32 and compared.

A row is x = t q + d, a column is w = s r + e, with q and r of 8 bits. Then x . w = t s (q . r) + d . (s r) + x . e. By
Cauchy-Schwarz the last two terms are at most |d| |s r| + |x| |e|. This is a bound, not an estimate: the largest column
is always among the candidates, the columns whose upper bound reaches the largest lower bound. The rounding of the
float32 sums is added to |e|, so the answer is the argmax of those sums, ties included.

With few rows the limit is reading the 8-bit weights. It is slow where more than MOST_CANDIDATES columns remain (nearly
equal columns), or where a product of norms might leave the range of float32: then all columns of such a row are
computed, in the same order as candidates. So its bits do not depend on which of the two happens.

In the class bfloat16, x and w are rounded to it first. The sums are those of float32 products all the same.

VPDPBUSD multiplies unsigned by signed bytes. So q + 128 is stored, and 128 times the sum of r is subtracted. On AVX2,
which has no such instruction, five others multiply signed bytes.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.arrays import rounded
from tilewright.ops.core.launch import launch
from tilewright.ops.core.memory import empty, zeros
from tilewright.ops.gemm.cpu.loops import MC, TILE, Product, columns_of, product_kernel
from tilewright.ops.gemm.cpu.pack import TILINGS
from tilewright.ops.gemm.operands import Rows
from tilewright.ops.matmul_argmax.cpu import logits
from tilewright.ops.matmul_argmax.operands import Prepared, Screen

LEVELS = 127
CHUNK = 1024  # columns quantised at a time: whole panels, and a few MiB
GROUP_CANDIDATES = 510  # most candidates of a row in a group of columns
FIELDS = 2 + 2 * GROUP_CANDIDATES  # per group: count, largest lower bound, then (column, upper bound) of each
MOST_CANDIDATES = 256  # candidates of a row that are computed in float32


class Quads(NamedTuple):
    """How four bytes are multiplied. kind: see `gemm.cpu.loops.PRODUCTS`. zero: added to the levels of a row of a."""

    kind: str
    zero: int


QUADS = {16: Quads("dot_quads", 128), 8: Quads("dot_signed_quads", 0)}  # by the CPU's lanes


class ColumnRows(NamedTuple):
    """Rows of `Screen.columns`: for each column of b the step of its levels, the offset and norm of its levels, and the
    norm of what rounding to levels lost."""

    step: int
    offset: int
    norm: int
    loss: int


ROW = ColumnRows(*range(4))
HEIGHT = 12  # rows of a tile in scratch; a vector of lower bounds follows them
SMALLEST, LARGEST = 1e-15, 1e15  # norms of rows and columns whose products are normal float32 numbers
SAFETY = 1.001  # factor of norms, far above their own rounding
EPS32 = float(np.finfo(np.float32).eps)


def screen(b: np.ndarray, dtype: str) -> Screen | None:
    """b (K, N) in 8 bits, with one step per column; None where a column is not finite, or the largest norm is outside
    SMALLEST to LARGEST. dtype: the accuracy class."""
    rows, lanes, rounds = np.ascontiguousarray(b.T, np.float32), cpu().lanes, dtype == "bfloat16"  # (N, K)
    (N, K), NR, zero = rows.shape, TILINGS[lanes].NR, QUADS[lanes].zero
    panels = zeros((-(-N // NR), K // 4, NR), np.int32)
    columns = zeros((4, len(panels) * NR))
    for i in range(0, N, CHUNK):
        part, at = rows[i : i + CHUNK], slice(i, min(i + CHUNK, N))
        part = rounded(part) if rounds else part
        step, levels, lost = rounded_to_levels(part)
        with np.errstate(over="ignore", invalid="ignore"):
            columns[ROW.step, at] = step
            columns[ROW.offset, at] = (zero * levels.sum(axis=1, dtype=np.int32)).view(np.float32)
            columns[ROW.norm, at] = step * norms(levels.astype(np.float32))
            rounding = np.float32((K + 12) * EPS32) * norms(part)  # of the float32 sums, and of `lost`
            columns[ROW.loss, at] = norms(lost) + rounding
        words = zeros((-(-len(part) // NR) * NR, K // 4), np.int32)
        words[: len(part)] = levels.view(np.int32)
        panels[i // NR : i // NR + len(words) // NR] = words.reshape(-1, NR, K // 4).swapaxes(1, 2)
    longest = columns[ROW.norm].max()
    if not (np.isfinite(columns[[ROW.step, ROW.norm, ROW.loss]]).all() and SMALLEST < longest < LARGEST):
        return None
    return Screen(panels.reshape(-1).view(np.float32), columns, rows, rounds)


def rounded_to_levels(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(step float32 (n,), levels int8 (n, K), rows - step * levels float32 (n, K)) of float32 (n, K)."""
    step = np.maximum(np.abs(rows).max(axis=1) / np.float32(LEVELS), np.finfo(np.float32).tiny)
    with np.errstate(over="ignore", invalid="ignore"):  # a row that is not finite is not screened
        levels = np.rint(rows / step[:, None])
        return step, levels.astype(np.int8), rows - step[:, None] * levels


def norms(rows: np.ndarray) -> np.ndarray:
    """Euclidean norm of each row, float32, rounded up; squares are float64, where none underflows."""
    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64, casting="same_kind")
    with np.errstate(over="ignore", invalid="ignore"):  # `screen` and `best` test for norms that are not finite
        return (np.sqrt(squares) * SAFETY).astype(np.float32)


def quantised(a: np.ndarray, zero: int) -> tuple[np.ndarray, np.ndarray]:
    """(words of four bytes q + zero as float32 (M, K / 4); float32 (M, 3): step, norm of the loss, norm of the row)."""
    step, levels, lost = rounded_to_levels(a)
    size = norms(a)
    words = (levels.astype(np.int16) + zero).astype(np.uint8).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return words, np.stack([step, norms(lost) + np.float32(2 * EPS32) * size, size], axis=1)


@functools.cache
def candidates_of_tile(lanes: int):
    """The inline function that finishes a tile of int32 dot products: it appends the candidates to out (M, groups *
    FIELDS)."""

    @simd.inline
    def append(found, at, column, upper):
        """Append a candidate to the group at offset `at`; if the group is full, only its count grows."""
        n = int(simd.fetch(found, at))
        if n < GROUP_CANDIDATES:
            simd.put(found, at + 2 + 2 * n, np.float32(column))
            simd.put(found, at + 3 + 2 * n, upper)
        simd.put(found, at, np.float32(min(n, GROUP_CANDIDATES) + 1))

    @simd.inline
    def finish_tile(tile, target, i, j, first, NC):
        """As that of `gemm.cpu.epilogue.finisher`. target.residual: the rows' step, loss and norm, see `quantised`.
        target.bias: `Screen.columns`. NC: columns in a group."""
        scratch, width, found = tile.scratch, tile.stride, target.out
        moments, fields = target.residual, target.bias
        padded = fields.size // 4
        for r in range(tile.height):
            at = tile.offset + r * width
            group = (i + r) * (found.strides[0] // 4) + j // NC * FIELDS
            m = (i + r) * 3
            step, lost = simd.broadcast(moments, m, lanes), simd.broadcast(moments, m + 1, lanes)
            norm, lower = simd.broadcast(moments, m + 2, lanes), simd.fetch(found, group + 1)
            for c in range(0, tile.columns, lanes):
                k = j + c
                offset = simd.load(fields, ROW.offset * padded + k, lanes)
                dot = simd.integers_less(simd.load(scratch, at + c, lanes), offset)
                middle = simd.multiply(dot, simd.multiply(step, simd.load(fields, k, lanes)))
                reach = simd.multiply(norm, simd.load(fields, ROW.loss * padded + k, lanes))
                reach = simd.fma(lost, simd.load(fields, ROW.norm * padded + k, lanes), reach)
                upper = simd.add(middle, reach)
                if simd.reduce_max(upper) >= lower:
                    lower_at = tile.offset + HEIGHT * width
                    simd.store(scratch, at + c, upper)
                    simd.store(scratch, lower_at, simd.subtract(middle, reach))
                    for lane in range(min(lanes, tile.columns - c)):
                        bound = simd.fetch(scratch, at + c + lane)
                        lower = max(lower, simd.fetch(scratch, lower_at + lane))
                        if bound >= lower:
                            append(found, group, k + lane, bound)
            simd.put(found, group + 1, lower)

    return finish_tile


class Candidates(NamedTuple):
    """K, and the number of groups of columns."""

    K: int
    groups: int


@simd.inline
def gather_candidates(found, at, groups, K, starts, first):
    """starts[first:] = offset of each candidate's weights. Returns their number, MOST_CANDIDATES + 1 for too many.
    at: offset of the row's groups in found."""
    lower, count = np.float32(-np.inf), 0
    for g in range(groups):
        lower = max(lower, found[at + g * FIELDS + 1])
    for g in range(groups):
        n = int(found[at + g * FIELDS])
        if n > GROUP_CANDIDATES:
            return MOST_CANDIDATES + 1
        for c in range(n):
            candidate = at + g * FIELDS + 2 + 2 * c
            if found[candidate + 1] >= lower:
                if count == MOST_CANDIDATES:
                    return MOST_CANDIDATES + 1
                starts[first + count] = int(found[candidate]) * K
                count += 1
    return count


@functools.cache
def decide_kernel(lanes: int, rounds: bool):
    """The kernel that computes the candidates of a row in float32, `lanes` at a time. rounds: weights are rounded to
    bfloat16 first."""

    @simd.inline
    def compare(a, a_at, weights, starts, first, count, K, scratch):
        """(column, value) of the largest of `count` candidates, the lowest column of equals."""
        column, value, last = -1, np.float32(-np.inf), first + count - 1
        for c in range(0, count, lanes):
            total = simd.zeros(lanes)
            for p in range(0, K, lanes):
                square = simd.block_zeros(lanes, 1, lanes)
                square = simd.block_transpose(simd.block_gather(square, weights, starts, first + c, last, p))
                if rounds:
                    square = simd.block_nearest_bfloat16(square)
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

    @simd.kernel(signature, name=f"matmul_argmax.decide.{lanes}{'.rounded' * rounds}")
    def decide(a, weights, found, starts, sizes, values, tasks, scratch):
        """A task is one row. a (M * K), weights (N * K): float32. found: what `candidates_of_tile` wrote. starts (M *
        MOST_CANDIDATES): the first entry of a row becomes its column, -1 if undecided. values (M,): the largest."""
        K, groups = sizes.K, sizes.groups
        row = simd.draw(tasks)
        while row >= 0:
            first = row * MOST_CANDIDATES
            count = gather_candidates(found, row * groups * FIELDS, groups, K, starts, first)
            column, value = -1, np.float32(0)
            if count <= MOST_CANDIDATES:
                column, value = compare(a, row * K, weights, starts, first, count, K, scratch)
            starts[first], values[row] = column, value
            row = simd.draw(tasks)

    return decide


def best(a: np.ndarray, screen: Screen) -> tuple[np.ndarray, np.ndarray]:
    """(column, value) of each row; column -1 for undecided rows."""
    lanes, (M, K), N = cpu().lanes, a.shape, len(screen.rows)
    kind, zero = QUADS[lanes]
    a = np.ascontiguousarray(rounded(a) if screen.rounded else a)
    words, moments = quantised(a, zero)
    origin, starts, step = Rows(words, None).addresses()
    NC = columns_of(M, N, TILINGS[lanes].NR)
    groups, steps = -(-N // NC), K // 4
    found = empty((M, groups * FIELDS))
    found[:, 0::FIELDS], found[:, 1::FIELDS] = 0, -np.inf
    job = Product(M, N, K=steps, depth=steps, step=step, MC=MC, KC=steps, NC=NC, argument=NC)
    scratch = TILE + MC * (steps + lanes) + lanes * lanes
    arrays = origin, starts, screen.panels, found, screen.columns.reshape(-1), moments
    kernel = product_kernel(kind, lanes, candidates_of_tile)
    launch(kernel, *arrays, job, tasks=-(-M // MC) * groups, words=scratch)
    unsafe = ~((moments[:, 2] > SMALLEST) & (moments[:, 2] < LARGEST))  # a NaN is unsafe too
    columns, values = decided(a, screen, found, groups)
    return np.where(unsafe, -1, columns), values


def decided(a: np.ndarray, screen: Screen, found: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """(column, value) of the largest candidate of each row of a (M, K); column -1 where there are too many, or none.
    found (M, groups * FIELDS): what `candidates_of_tile` wrote."""
    lanes, (M, K) = cpu().lanes, a.shape
    candidates, values = np.empty(M * MOST_CANDIDATES, np.int64), np.empty(M, np.float32)
    arrays = a.reshape(-1), screen.rows.reshape(-1), found.reshape(-1), candidates
    launch(decide_kernel(lanes, screen.rounded), *arrays, Candidates(K, groups), values, tasks=M, words=lanes)
    return candidates[::MOST_CANDIDATES], values


def best_of_all(row: np.ndarray, screen: Screen) -> tuple[int, np.float32]:
    """(column, value) of the largest of all columns for one row (1, K); column -1 if no sum is above -infinity."""
    N = len(screen.rows)
    groups = -(-N // MOST_CANDIDATES)
    columns = np.arange(groups * MOST_CANDIDATES).reshape(groups, MOST_CANDIDATES)
    found = zeros((groups, FIELDS))  # a group of columns is a row whose candidates are these columns
    found[:, 0], found[:, 1] = (columns < N).sum(axis=1), -np.inf
    found[:, 2 : 2 + 2 * MOST_CANDIDATES : 2], found[:, 3 : 3 + 2 * MOST_CANDIDATES : 2] = columns, np.inf
    a = np.repeat(rounded(row) if screen.rounded else row.astype(np.float32), groups, axis=0)
    at, values = decided(a, screen, found, groups=1)
    at, values = at[at >= 0], values[at >= 0]
    if not len(at):
        return -1, np.float32(-np.inf)
    return int(at[values.argmax()]), values.max()


def search(a: np.ndarray, prepared: Prepared, index: np.ndarray, value: np.ndarray) -> None:
    """index, value (M,) of the largest element of each row of a @ prepared.weights.

    `logits` computes all rows if the weights have no screen, and a row without a sum above -infinity.
    """
    if prepared.screen is None:
        logits.search(a, prepared, index, value)
        return
    index[...], value[...] = best(a, prepared.screen)
    for i in np.flatnonzero(index < 0):
        index[i], value[i] = best_of_all(a[i : i + 1], prepared.screen)
        if index[i] < 0:
            logits.search(a[i : i + 1], prepared, index[i : i + 1], value[i : i + 1])
