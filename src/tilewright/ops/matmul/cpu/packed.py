"""The five loops around the micro-kernel, on packed panels, drawn by any number of threads.

out (M, N) is cut into tasks of MC rows x NC columns. A task walks K in blocks of KC: it packs its MC x KC of A, which
then stays in L2, and for each panel of B (KC x NR, which stays in L1) runs the micro-kernel down the rows. Sums along K
are taken block by block: a block's sum starts from zero in registers and is then added to out, so an element's rounding
follows from K alone.

The same loops serve bfloat16: there a step along K is one word of two numbers, and only the packing of A and the
product differ. Source: Goto and van de Geijn 2008; the names of the loops are those of Van Zee and van de Geijn,
"BLIS", 2015.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops._threads import launch, thread_count
from tilewright.ops.matmul.cpu.finish import ACTIVATIONS, RELU
from tilewright.ops.matmul.cpu.pack import TILINGS, row_packer
from tilewright.ops.matmul.cpu.words import word_packer, words_of
from tilewright.ops.matmul.operands import Epilogue, Packed, Rows

KC = 768  # at most this many steps of K in a block: A's 192 rows are 576 KiB of L2; half costs 10 % in visits to out
MC = 192  # rows in a task: sixteen panels of 12
NC = 4096  # at most this many columns in a task: A is packed once for all of them
PRODUCTS = {"float32": simd.block_rank1, "widened": simd.block_widened_pair, "dot_pairs": simd.block_dot_pair}


def depth_of(steps: int) -> int:
    """KC for a depth: equal blocks, a multiple of 8, none above KC.

    It decides the rounding, so it depends on K alone.
    """
    blocks = -(-steps // KC)
    return -(-steps // (8 * blocks)) * 8


@functools.cache
def micro_kernels(kind: str, lanes: int):
    """(pack a cache block of A, multiply one panel of B with it): the two inner loops."""
    (HIGH, MIDDLE, SINGLE), NR, vectors = TILINGS[lanes].rows, TILINGS[lanes].NR, TILINGS[lanes].vectors
    product = PRODUCTS[kind]
    pack_rows = row_packer(lanes) if kind == "float32" else word_packer(lanes)

    @simd.inline
    def pack_block(a, starts, rows, p, depth, plan, packed):
        """Rows (i, end) of A from step p: panels of HIGH rows, then of MIDDLE, then single ones, each after the one
        before."""
        (i, end), at = rows, 0
        while i < end:
            if end - i >= HIGH:
                pack_rows(HIGH, a, starts, (i, p), depth, plan, packed, at)
                i, at = i + HIGH, at + HIGH * depth
            elif end - i >= MIDDLE:
                pack_rows(MIDDLE, a, starts, (i, p), depth, plan, packed, at)
                i, at = i + MIDDLE, at + MIDDLE * depth
            else:
                pack_rows(SINGLE, a, starts, (i, p), depth, plan, packed, at)
                i, at = i + SINGLE, at + SINGLE * depth

    @simd.inline
    def micro(rows, operands, at, depth, out, corner, base, add):
        """rows x NR of out at corner (i, j) = their sum over one block of K, in registers from first to last, + base if
        `add`.

        operands: (packed A, panels of B); at: where this block begins in each.
        """
        (packed, panels), (a_at, b_at), (i, j) = operands, at, corner
        block = simd.block_zeros(rows, vectors, lanes)
        for p in range(depth):
            block = product(block, packed, a_at + p * rows, panels, b_at + p * NR)
        columns, stride = out.shape[1] - j, out.strides[0] // 4
        if add:
            base_stride = base.strides[0] // 4
            block = simd.block_add(block, base, i * base_stride + j, base_stride, columns)
        simd.block_store(block, out, i * stride + j, stride, columns)

    @simd.inline
    def down_rows(operands, b_at, depth, out, span, base, add):
        """One panel of B against all rows of the packed block; span: (i, end, j)."""
        (i, end, j), at = span, 0
        while i < end:
            if end - i >= HIGH:
                micro(HIGH, operands, (at, b_at), depth, out, (i, j), base, add)
                i, at = i + HIGH, at + HIGH * depth
            elif end - i >= MIDDLE:
                micro(MIDDLE, operands, (at, b_at), depth, out, (i, j), base, add)
                i, at = i + MIDDLE, at + MIDDLE * depth
            else:
                micro(SINGLE, operands, (at, b_at), depth, out, (i, j), base, add)
                i, at = i + SINGLE, at + SINGLE * depth

    return pack_block, down_rows


def finisher(lanes: int):
    """The inline function that adds the bias and applies the activation to a strip of out while it is in cache."""

    @simd.inline
    def finish_rows(out, span, columns, bias, activation):
        (i, end, j), stride = span, out.strides[0] // 4
        for r in range(i, end):
            for c in range(j, j + columns, lanes):
                left = j + columns - c
                x = simd.load_first(out, r * stride + c, left, lanes)
                if bias.size:
                    x = simd.add(x, simd.load_first(bias, c, left, lanes))
                if activation == RELU:
                    x = simd.maximum(x, simd.zeros(lanes))
                simd.store_first(out, r * stride + c, x, left)

    return finish_rows


@functools.cache
def product_kernel(kind: str, lanes: int):
    """The kernel for a kind of product and a vector width."""
    pack_block, down_rows = micro_kernels(kind, lanes)
    finish_rows, NR = finisher(lanes), TILINGS[lanes].NR

    @simd.inline
    def one_task(task, a, starts, panels, out, epilogue, plan, packed):
        """MC rows x NC columns of out. epilogue: (bias, residual)."""
        (M, N, K, KC, NC, activation), (bias, residual) = (
            (plan[1], plan[2], plan[3], plan[5], plan[6], plan[7]),
            epilogue,
        )
        groups = (N + NC - 1) // NC
        i, j0 = task // groups * MC, task % groups * NC
        end, j1 = min(i + MC, M), min(j0 + NC, N)
        for p in range(0, K, KC):
            depth = min(KC, K - p)
            pack_block(a, starts, (i, end), p, depth, plan, packed)
            for j in range(j0, j1, NR):
                at = j * K + p * NR
                if p == 0 and residual.size:
                    down_rows((packed, panels), at, depth, out, (i, end, j), residual, True)
                else:
                    down_rows((packed, panels), at, depth, out, (i, end, j), out, p > 0)
                if p + depth == K and (bias.size or activation):
                    finish_rows(out, (i, end, j), min(NR, N - j), bias, activation)

    signature = types.void(
        simd.INPUT, simd.INDICES, simd.INPUT, simd.OUTPUT_2D, simd.INPUT, simd.INPUT_2D, simd.PLAN, simd.OUTPUT
    )

    @simd.kernel(signature, name=f"matmul.packed.{kind}.{lanes}")
    def packed_product(a, starts, panels, out, bias, residual, plan, scratch):
        """plan: next task, M, N, steps along K, A's step, KC, NC, activation, K in numbers."""
        M, N, NC = plan[1], plan[2], plan[6]
        tasks = ((M + MC - 1) // MC) * ((N + NC - 1) // NC)
        task = simd.fetch_add(plan, 0, 1)
        while task < tasks:
            one_task(task, a, starts, panels, out, (bias, residual), plan, scratch)
            task = simd.fetch_add(plan, 0, 1)

    return packed_product


def columns_of(M: int, N: int, NR: int) -> int:
    """NC: as wide as possible while every thread finds some four tasks to draw; a multiple of NR.

    It changes no result.
    """
    wanted = 4 * thread_count() if thread_count() > 1 else 1
    groups = max(-(-wanted // -(-M // MC)), -(-N // NC))
    return -(-N // (groups * NR)) * NR


def multiply(kind: str, rows: Rows, weights: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    """The run function of every packed rung: out = activation(rows @ weights + residual + bias)."""
    if weights.K == 0:
        finish_empty(out, epilogue)
        return
    lanes, M, N = cpu().lanes, rows.count, weights.N
    steps = weights.K if kind == "float32" else words_of(weights.K)
    if kind != "float32" and rows.array.strides[1] != 4:
        rows = Rows(np.ascontiguousarray(rows.array), rows.index)
    origin, starts, step = rows.addresses()
    NC, depth = columns_of(M, N, TILINGS[lanes].NR), depth_of(steps)
    activation = ACTIVATIONS[epilogue.activation]
    plan = np.array([0, M, N, steps, step, depth, NC, activation, weights.K], np.int64)
    arrays = (origin, starts, weights.data, out, epilogue.bias, epilogue.residual, plan)
    words = MC * (depth + lanes) + lanes * lanes  # the last packed rows may be written a vector too wide
    launch(product_kernel(kind, lanes), *arrays, tasks=-(-M // MC) * -(-N // NC), words=words)


def finish_empty(out: np.ndarray, epilogue: Epilogue) -> None:
    """A sum of nothing is zero: out is the residual, the bias and the activation."""
    out[...] = epilogue.residual if epilogue.residual.size else 0
    if epilogue.bias.size:
        out += epilogue.bias
    if epilogue.activation == "relu":
        np.maximum(out, 0, out=out)
