"""The log-probability of one column in each row of a (M, K) @ b (K, N), without writing the product.

The packed kernels of `gemm` reduce a tile of sums while it is in cache. A task is MC rows x WIDTH columns, and leaves
four numbers per row: the largest logit of the group, its column, the sum of exp(logit - largest), and the target's
logit if the group has it. A last kernel combines the groups. K is one block, because there is no memory for partial
sums.

`score_twice` computes the product once for the maxima and again for the sums. `score` computes it once: where a tile
has a larger logit, the sum so far is multiplied by exp(old - new). The limit is the rate of multiply-adds. With few
rows it is reading the weights from memory. `score_twice` is slower than `cpu.pieces` where multiplying takes longer
than writing and reading logits. `score` is slow if there are few columns.

Source of the running sum: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
"""

import functools
import math

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch
from tilewright.ops.core.memory import empty
from tilewright.ops.gemm.cpu import amx, loops
from tilewright.ops.gemm.cpu.loops import Product, product_kernel
from tilewright.ops.gemm.cpu.pack import TILINGS
from tilewright.ops.gemm.cpu.words import words_of
from tilewright.ops.gemm.operands import Packed, Rows
from tilewright.ops.logprob.operands import KINDS, Prepared, Results

FIELDS = 4  # per row and group: largest logit, its column, sum of exps, logit of the target
WIDTH = 2048  # columns in a group: 25 tasks for GPT-2's vocabulary. It decides the rounding, so rows do not change it


@functools.cache
def tile_functions(lanes: int):
    """(largest_of, exp_sum) of one row of a tile of sums, whose columns are padded with -inf to whole vectors."""

    @simd.inline
    def largest_of(tile, start):
        largest = simd.load(tile.scratch, start, lanes)
        for c in range(lanes, tile.columns, lanes):
            largest = simd.maximum(largest, simd.load(tile.scratch, start + c, lanes))
        return simd.reduce_max(largest)

    @simd.inline
    def exp_sum(tile, start, largest):
        """The sum of exp(logit - largest)."""
        most, total = simd.splat(largest, lanes), simd.zeros(lanes)
        for c in range(0, tile.columns, lanes):
            total = simd.add(total, simd.exp(simd.subtract(simd.load(tile.scratch, start + c, lanes), most)))
        return simd.reduce_add(total)

    return largest_of, exp_sum


@simd.inline
def keep_target(tile, start, target, row, at, j):
    """Keep the target's logit if this tile has it."""
    wanted = int(simd.fetch(target.residual, row)) - j
    if 0 <= wanted < tile.columns:
        simd.put(target.out, at + 3, simd.fetch(tile.scratch, start + wanted))


@simd.inline
def keep_column(tile, start, most, target, at, j):
    """Keep a new largest logit and its column."""
    column = 0
    while column < tile.columns - 1 and simd.fetch(tile.scratch, start + column) != most:
        column += 1
    simd.put(target.out, at, most)
    simd.put(target.out, at + 1, np.float32(j + column))


def row_by_row(lanes: int, reduce_row):
    """The inline function that finishes a tile: it adds the bias to each row, then calls `reduce_row`."""

    @simd.inline
    def add_bias(tile, start, bias, j):
        """Add the bias, then fill the row up to whole vectors with -inf."""
        scratch = tile.scratch
        if bias.size:
            for c in range(0, tile.columns, lanes):
                left = tile.columns - c
                total = simd.add(simd.load(scratch, start + c, lanes), simd.load_first(bias, j + c, left, lanes))
                simd.store(scratch, start + c, total)
        for c in range(tile.columns, (tile.columns + lanes - 1) // lanes * lanes):
            simd.put(scratch, start + c, np.float32(-np.inf))

    @simd.inline
    def finish_tile(tile, target, i, j, first, width):
        """As that of `gemm.cpu.epilogue.finisher`. width: columns in a group. target.out (M, groups * FIELDS);
        target.residual (M, 1): the targets as float32."""
        for r in range(tile.height):
            start = tile.offset + r * tile.stride
            at = (i + r) * (target.out.strides[0] // 4) + FIELDS * (j // width)
            add_bias(tile, start, target.bias, j)
            reduce_row(tile, start, target, i + r, at, j)

    return finish_tile


@functools.cache
def running_sum(lanes: int):
    """The inline function that finishes a tile for `score`."""
    largest_of, exp_sum = tile_functions(lanes)

    @simd.inline
    def reduce_row(tile, start, target, row, at, j):
        """at: the row's fields of this group in target.out."""
        keep_target(tile, start, target, row, at, j)
        most, largest = largest_of(tile, start), simd.fetch(target.out, at)
        total = simd.fetch(target.out, at + 2)
        if not most <= largest:
            if total > 0:
                total = np.float32(total * math.exp(np.float64(largest - most)))
            keep_column(tile, start, most, target, at, j)
            largest = most
        simd.put(target.out, at + 2, total + exp_sum(tile, start, largest))

    return row_by_row(lanes, reduce_row)


@functools.cache
def largest_only(lanes: int):
    """The same for the first product of `score_twice`: the largest logit and the target's."""
    largest_of, _ = tile_functions(lanes)

    @simd.inline
    def reduce_row(tile, start, target, row, at, j):
        keep_target(tile, start, target, row, at, j)
        most = largest_of(tile, start)
        if not most <= simd.fetch(target.out, at):
            keep_column(tile, start, most, target, at, j)

    return row_by_row(lanes, reduce_row)


@functools.cache
def sum_only(lanes: int):
    """The same for the second product of `score_twice`: the sum of exps, by the largest logit of the group."""
    _, exp_sum = tile_functions(lanes)

    @simd.inline
    def reduce_row(tile, start, target, row, at, j):
        total = exp_sum(tile, start, simd.fetch(target.out, at))
        simd.put(target.out, at + 2, simd.fetch(target.out, at + 2) + total)

    return row_by_row(lanes, reduce_row)


SIGNATURE = types.void(simd.INPUT, types.int64, types.int64, simd.INDICES, simd.OUTPUT, simd.COUNTERS)


@simd.kernel(SIGNATURE, name="logprob.combine")
def combine(found, groups, width, targets, value, best):
    """found (M * groups * FIELDS): what the tiles left. In scalars, so that a row's rounding depends on it alone."""
    for i in range(value.size):
        at, largest, column = i * groups * FIELDS, np.float32(-np.inf), 0
        for g in range(groups):
            most = found[at + g * FIELDS]
            if not most <= largest:
                largest, column = most, int(found[at + g * FIELDS + 1])
        total = 0.0
        for g in range(groups):
            total += found[at + g * FIELDS + 2] * math.exp(np.float64(found[at + g * FIELDS] - largest))
        wanted = np.float64(found[at + targets[i] // width * FIELDS + 3] - largest)
        value[i], best[i] = np.float32(wanted - math.log(total)) if total > 0 else np.float32(np.nan), column


def score(a: np.ndarray, prepared: Prepared, targets: np.ndarray, results: Results) -> None:
    """The results of every row of a, from one product."""
    run(a, prepared, targets, results, (running_sum,))


def score_twice(a: np.ndarray, prepared: Prepared, targets: np.ndarray, results: Results) -> None:
    """The results of every row of a, from two products."""
    run(a, prepared, targets, results, (largest_only, sum_only))


def run(a, prepared: Prepared, targets, results: Results, finishers: tuple, *, emulated: bool = False) -> None:
    """One product for each of `finishers`, which make the functions that finish a tile. emulated: AMX tiles are."""
    found = empty((len(a), FIELDS * groups_of(prepared.weights.N)))
    found[:, 0::FIELDS], found[:, 1::FIELDS], found[:, 2::FIELDS] = -np.inf, 0, 0
    wanted = np.ascontiguousarray(targets[:, None], np.float32)
    for finish in finishers:
        multiply(a, prepared, wanted, found, finish, emulated)
    combine(found.reshape(-1), groups_of(prepared.weights.N), WIDTH, targets, results.value, results.best)


def groups_of(N: int) -> int:
    """Groups of WIDTH columns."""
    return -(-N // WIDTH)


def multiply(a: np.ndarray, prepared: Prepared, wanted: np.ndarray, found: np.ndarray, finish, emulated: bool) -> None:
    """The packed product whose tiles `finish` reduces into found (M, groups * FIELDS). wanted: float32 (M, 1)."""
    lanes, weights = cpu().lanes, prepared.weights
    kind, M = KINDS.get(weights.rung, "amx"), len(a)
    rows = Rows(a if kind == "float32" else np.ascontiguousarray(a), None)
    steps = weights.K if kind == "float32" else words_of(weights.K)
    origin, starts, step = rows.addresses()
    limbs = limbs_of(weights)
    if kind == "amx":
        MC = amx.rows_of(M, steps, limbs)
        kernel, words = amx.product_kernel(limbs, emulated, finish), amx.PACKED + limbs * MC * steps
    else:
        MC = loops.rows_of(kind)
        kernel, words = product_kernel(kind, lanes, finish), loops.scratch_words(kind, steps, lanes)
    assert WIDTH % (loops.PANELS * TILINGS[lanes].NR) == 0 and WIDTH % amx.WIDE == 0
    job = Product(M, weights.N, K=steps, depth=weights.K, step=step, MC=MC, KC=steps, NC=WIDTH, argument=WIDTH)
    arrays = origin, starts, weights.data, found, prepared.bias, wanted
    launch(kernel, *arrays, job, tasks=-(-M // MC) * groups_of(weights.N), words=words)


def limbs_of(weights: Packed) -> int:
    """Limbs of an element in AMX tiles."""
    return 2 if weights.dtype == "float32" else 1
