"""Screening in 8 bits: products of bytes read a quarter of the memory of float32 ones, take less time, and rule out
nearly all columns. The remaining candidates are computed as matmul computes them, and compared.

A row is x = t q + d, a column is w = s r + e, with q and r of 8 bits. Then x . w = t s (q . r) + d . (s r) + x . e. By
Cauchy-Schwarz the last two terms are at most |d| |s r| + |x| |e|. This is a bound, not an estimate: the largest column
is always among the candidates, the columns whose upper bound reaches the largest lower bound. The rounding of matmul's
sums is added to |e|, so the answer is the argmax of those sums, ties included. So is what very small products lose,
because they are rounded to denormal numbers or, by VDPBF16PS, to zero.

With few rows the limit is reading the 8-bit weights. It is slow where more than MOST_CANDIDATES columns remain (nearly
equal columns), or where a product of norms might leave the range of float32: then all columns of such a row are
computed, in the same order as candidates. So its bits do not depend on which of the two happens.

In the class bfloat16, x and w are rounded to it first. The sums of matmul's rung are those of float32, or of VDPBF16PS.

VPDPBUSD multiplies unsigned by signed bytes. So q + 128 is stored, and 128 times the sum of r is subtracted. On AVX2,
which has no such instruction, five others multiply signed bytes.
"""

import functools
import math
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
from tilewright.ops.gemm.cpu.words import words_of
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


# Kind of product of matmul's rung -> how products of one row are added
SUMS = {"float32": simd.block_dot_rows, "widen_b": simd.block_dot_rows, "dot_pairs": simd.block_dot_row_pairs}
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
SMALLEST, LARGEST = 1e-15, 1e15  # norms of rows and of the longest column whose product is a normal float32 number
SAFETY = 1.001  # factor of norms, far above their own rounding
EPS32, TINY = float(np.finfo(np.float32).eps), float(np.finfo(np.float32).tiny)
FEW = 8  # rows that are rounded to levels on the calling thread


def screen(b: np.ndarray, dtype: str) -> Screen | None:
    """b (K, N) in 8 bits, with one step per column; None where a column is not finite, or the largest norm is outside
    SMALLEST to LARGEST. dtype: the accuracy class."""
    rows, lanes = np.ascontiguousarray(b.T, np.float32), cpu().lanes  # (N, K)
    (N, K), NR, zero = rows.shape, TILINGS[lanes].NR, QUADS[lanes].zero
    panels = zeros((-(-N // NR), K // 4, NR), np.int32)
    columns = zeros((4, len(panels) * NR))
    for i in range(0, N, CHUNK):
        part, at = rows[i : i + CHUNK], slice(i, min(i + CHUNK, N))
        levels, found = quantised(rounded(part) if dtype == "bfloat16" else part, zero=0)
        with np.errstate(over="ignore", invalid="ignore"):
            columns[ROW.step, at], columns[ROW.norm, at] = found[:, FOUND.step], found[:, FOUND.levels]
            columns[ROW.offset, at] = (zero * found[:, FOUND.sum]).astype(np.int32).view(np.float32)
            # K roundings of matmul's sum, and a few of the bounds: each at most EPS32 / 2 of the product of norms
            columns[ROW.loss, at] = found[:, FOUND.loss] + np.float32((K + 12) * EPS32) * found[:, FOUND.norm]
        words = zeros((-(-len(part) // NR) * NR, K // 4), np.int32)
        words[: len(part)] = levels.view(np.int32)
        panels[i // NR : i // NR + len(words) // NR] = words.reshape(-1, NR, K // 4).swapaxes(1, 2)
    # products that are rounded to zero or to denormals lose at most 3 K TINY; the norm of a row is above SMALLEST
    columns[ROW.loss] = np.maximum(columns[ROW.loss], np.float32(3 * K * TINY / SMALLEST))
    longest = columns[ROW.norm].max()
    if not (np.isfinite(columns[[ROW.step, ROW.norm, ROW.loss]]).all() and SMALLEST < longest < LARGEST):
        return None
    return Screen(panels.reshape(-1).view(np.float32), columns, rows)


class Quantised(NamedTuple):
    """What `quantise` writes for a row: the step of its levels, the norm of step * levels, a bound of the norm of what
    rounding to levels lost, the norm of the row, and the sum of its levels."""

    step: int
    levels: int
    loss: int
    norm: int
    sum: int


FIELDS_FOUND = len(Quantised._fields)
FOUND = Quantised(*range(FIELDS_FOUND))


class Depth(NamedTuple):
    """K, and what is added to a level to store it."""

    K: int
    zero: int


@functools.cache
def quantise_kernel():
    """The kernel that rounds rows to 8 bits."""
    signature = types.void(
        simd.INPUT, simd.record(Depth), types.Array(types.uint8, 1, "C"), simd.OUTPUT, simd.TASKS, simd.OUTPUT
    )

    @simd.kernel(signature, name="matmul_argmax.quantise")
    def quantise(rows, depth, levels, found, tasks, scratch):
        """A task is one row of rows (n * K). levels (n * K): its levels + zero. found (n * 5): see `Quantised`. A row
        that is not finite has a norm that is not finite. Norms are rounded up."""
        K, row = depth.K, simd.draw(tasks)
        while row >= 0:
            at, largest = row * K, np.float32(0)
            for p in range(K):
                largest = max(largest, abs(rows[at + p]))
            step = max(largest / np.float32(LEVELS), np.float32(TINY))
            total, of_levels, of_loss, of_row = 0, 0, 0.0, 0.0
            for p in range(K):
                value = rows[at + p]
                nearest = np.rint(value / step)
                level = np.int64(nearest) if abs(nearest) <= LEVELS else 0  # false for a NaN
                levels[at + p] = np.uint8(level + depth.zero)
                total, of_levels = total + level, of_levels + level * level
                lost = np.float64(value) - np.float64(step) * level
                of_loss, of_row = of_loss + lost * lost, of_row + np.float64(value) * np.float64(value)
            first = row * FIELDS_FOUND
            found[first + FOUND.step], found[first + FOUND.sum] = step, np.float32(total)
            found[first + FOUND.levels] = np.float32(step * math.sqrt(of_levels) * SAFETY)
            found[first + FOUND.loss] = np.float32(math.sqrt(of_loss) * SAFETY)
            found[first + FOUND.norm] = np.float32(math.sqrt(of_row) * SAFETY)
            row = simd.draw(tasks)

    return quantise


def quantised(rows: np.ndarray, zero: int) -> tuple[np.ndarray, np.ndarray]:
    """(levels + zero, uint8 (n, K), as float32 words of four; float32 (n, 5), see `Quantised`) of float32 (n, K)."""
    n, K = rows.shape
    levels, found = empty((n, K), np.uint8), empty((n, FIELDS_FOUND))
    arrays = rows.reshape(-1), Depth(K, zero), levels.reshape(-1), found.reshape(-1)
    launch(quantise_kernel(), *arrays, tasks=n, words=1, alone=n <= FEW)
    return levels.view(np.float32), found


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
        """As that of `gemm.cpu.epilogue.finisher`. target.residual: the rows' `Quantised`. target.bias:
        `Screen.columns`. NC: columns in a group."""
        scratch, width, found = tile.scratch, tile.stride, target.out
        moments, fields = target.residual, target.bias
        padded = fields.size // 4
        for r in range(tile.height):
            at = tile.offset + r * width
            group = (i + r) * (found.strides[0] // 4) + j // NC * FIELDS
            m = (i + r) * FIELDS_FOUND
            step, lost = simd.broadcast(moments, m, lanes), simd.broadcast(moments, m + FOUND.loss, lanes)
            norm, lower = simd.broadcast(moments, m + FOUND.norm, lanes), simd.fetch(found, group + 1)
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
    """K. depth: float32 elements, or words, in a row of a. groups: of columns."""

    K: int
    depth: int
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
def square_gatherer(kind: str, lanes: int):
    """The inline function that loads `lanes` steps along K of `lanes` candidates, rounded if `kind` rounds them. kind:
    of matmul's rung, see `gemm.cpu.loops.PRODUCTS`."""

    @simd.inline
    def gather(weights, starts, first, last, p, K):
        """Row i: step p + i of the candidates from `first` on, whose weights begin at `starts`."""
        square = simd.block_zeros(lanes, 1, lanes)
        if kind == "dot_pairs":
            square = simd.block_gather_rounded(square, weights, starts, first, last, 2 * p, K - 2 * p)
        else:
            square = simd.block_gather(square, weights, starts, first, last, p)
        square = simd.block_transpose(square)
        if kind == "widen_b":
            square = simd.block_nearest_bfloat16(square)
        return square

    return gather


@functools.cache
def decide_kernel(kind: str, lanes: int):
    """The kernel that computes the candidates of a row, `lanes` at a time, as matmul's rung computes its sums."""
    gather, add = square_gatherer(kind, lanes), SUMS[kind]

    @simd.inline
    def compare(a, a_at, weights, starts, first, count, sizes, scratch):
        """(column, value) of the largest of `count` candidates, the lowest column of equals."""
        column, value, last = -1, np.float32(-np.inf), first + count - 1
        for c in range(0, count, lanes):
            total = simd.zeros(lanes)
            for p in range(0, sizes.depth, lanes):
                total = add(total, gather(weights, starts, first + c, last, p, sizes.K), a, a_at + p)
            simd.store(scratch, 0, total)
            for i in range(min(lanes, count - c)):
                found = starts[first + c + i] // sizes.K
                if scratch[i] > value or (scratch[i] == value and found < column):
                    column, value = found, scratch[i]
        return column, value

    signature = types.void(
        simd.INPUT, simd.INPUT, simd.INPUT, types.Array(types.int64, 1, "C"), simd.record(Candidates), simd.OUTPUT,
        simd.TASKS, simd.OUTPUT,
    )  # fmt: skip

    @simd.kernel(signature, name=f"matmul_argmax.decide.{kind}.{lanes}")
    def decide(a, weights, found, starts, sizes, values, tasks, scratch):
        """A task is one row. a (M * depth): float32 or words. weights (N * K): float32. found: what
        `candidates_of_tile` wrote. starts (M * MOST_CANDIDATES): the first entry of a row becomes its column, -1 if
        undecided. values (M,): the largest."""
        groups = sizes.groups
        row = simd.draw(tasks)
        while row >= 0:
            first = row * MOST_CANDIDATES
            count = gather_candidates(found, row * groups * FIELDS, groups, sizes.K, starts, first)
            column, value = -1, np.float32(0)
            if count <= MOST_CANDIDATES:
                column, value = compare(a, row * sizes.depth, weights, starts, first, count, sizes, scratch)
            starts[first], values[row] = column, value
            row = simd.draw(tasks)

    return decide


def best(a: np.ndarray, prepared: Prepared) -> tuple[np.ndarray, np.ndarray]:
    """(column, value) of each row; column -1 for undecided rows. prepared has a screen."""
    assert prepared.screen is not None
    screen, kind, lanes = prepared.screen, prepared.kind, cpu().lanes
    (M, K), N, quads = a.shape, len(screen.rows), QUADS[lanes]
    a = np.ascontiguousarray(a if kind == "float32" else rounded(a))
    words, moments = quantised(a, quads.zero)
    origin, starts, step = Rows(words, None).addresses()
    NC = columns_of(M, N, TILINGS[lanes].NR)
    groups, steps = -(-N // NC), K // 4
    found = empty((M, groups * FIELDS))
    found[:, 0::FIELDS], found[:, 1::FIELDS] = 0, -np.inf
    job = Product(M, N, K=steps, depth=steps, step=step, MC=MC, KC=steps, NC=NC, argument=NC)
    scratch = TILE + MC * (steps + lanes) + lanes * lanes
    arrays = origin, starts, screen.panels, found, screen.columns.reshape(-1), moments
    kernel = product_kernel(quads.kind, lanes, candidates_of_tile)
    launch(kernel, *arrays, job, tasks=-(-M // MC) * groups, words=scratch)
    norm = moments[:, FOUND.norm]
    unsafe = ~((norm > SMALLEST) & (norm < LARGEST))  # a NaN is unsafe too
    columns, values = decided(a, screen, kind, found, groups)
    return np.where(unsafe, -1, columns), values


def decided(a: np.ndarray, screen: Screen, kind: str, found: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """(column, value) of the largest candidate of each row of a (M, K); column -1 where there are too many, or none.
    a: rounded if `kind`, of matmul's rung, needs it. found (M, groups * FIELDS): what `candidates_of_tile` wrote."""
    lanes, (M, K) = cpu().lanes, a.shape
    candidates, values = np.empty(M * MOST_CANDIDATES, np.int64), np.empty(M, np.float32)
    a = pairs_of(a) if kind == "dot_pairs" else a
    sizes = Candidates(K, depth=a.shape[1], groups=groups)
    arrays = a.reshape(-1), screen.rows.reshape(-1), found.reshape(-1), candidates
    launch(decide_kernel(kind, lanes), *arrays, sizes, values, tasks=M, words=lanes)
    return candidates[::MOST_CANDIDATES], values


def pairs_of(a: np.ndarray) -> np.ndarray:
    """float32 (M, K), rounded to bfloat16, as words of two elements: (M, words) with zeros at the end."""
    M, K = a.shape
    words = zeros((M, words_of(K)))
    upper_halves = a.view(np.uint16)[:, 1::2]  # a bfloat16 is the upper half of a float32
    words.view(np.uint16)[:, :K] = upper_halves
    return words


def best_of_all(row: np.ndarray, prepared: Prepared) -> tuple[int, np.float32]:
    """(column, value) of the largest of all columns for one row (1, K); column -1 if no sum is above -infinity."""
    assert prepared.screen is not None
    screen, kind = prepared.screen, prepared.kind
    N = len(screen.rows)
    groups = -(-N // MOST_CANDIDATES)
    columns = np.arange(groups * MOST_CANDIDATES).reshape(groups, MOST_CANDIDATES)
    found = zeros((groups, FIELDS))  # a group of columns is a row whose candidates are these columns
    found[:, 0], found[:, 1] = (columns < N).sum(axis=1), -np.inf
    found[:, 2 : 2 + 2 * MOST_CANDIDATES : 2], found[:, 3 : 3 + 2 * MOST_CANDIDATES : 2] = columns, np.inf
    a = np.repeat(row.astype(np.float32) if kind == "float32" else rounded(row), groups, axis=0)
    at, values = decided(a, screen, kind, found, groups=1)
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
    index[...], value[...] = best(a, prepared)
    for i in np.flatnonzero(index < 0):
        index[i], value[i] = best_of_all(a[i : i + 1], prepared)
        if index[i] < 0:
            logits.search(a[i : i + 1], prepared, index[i : i + 1], value[i : i + 1])
