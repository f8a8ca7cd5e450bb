"""The five loops around the micro-kernel, on packed panels, drawn by any number of threads.

out (M, N) is cut into tasks of MC rows x NC columns. A task walks K in blocks of KC: it packs its MC x KC of A, which
then stays in L2, and runs the micro-kernel down the rows for PANELS panels of B at a time (KC x NR each, in L2, too): a
panel of A stays in L1 while they stream past it. Sums along K are taken block by block: a block's sum starts from zero
in registers and is then added to out, so an element's rounding follows from K alone. Loses to `cpu.vectors` where b is
not prepared and meets few rows: to pack it takes longer than to multiply.

The same loops serve bfloat16: there a step along K is one word of two numbers, and only the packing of A and the
product differ. Where a CPU multiplies float32 alone, A's words are taken apart when they are packed ("mixed"). Source:
Goto and van de Geijn 2008; the names of the loops are those of Van Zee and van de Geijn, "BLIS", 2015.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch, thread_count
from tilewright.ops.core.memory import LINE
from tilewright.ops.matmul.cpu.finish import (
    ACTIVATIONS,
    activate_number,
    expect,
    finisher,
    rounded_out,
    rounding_finisher,
)
from tilewright.ops.matmul.cpu.pack import TILINGS, row_packer
from tilewright.ops.matmul.cpu.words import in_words, widened_packer, word_packer, words_of
from tilewright.ops.matmul.operands import Epilogue, Packed, Rows

KC = 768  # at most this many steps of K in a block: A's 192 rows are 576 KiB of L2; half costs 10 % in visits to out
# panels of B that a panel of A meets one after the other: it stays in L1, and rows of out are finished in longer pieces
PANELS = 4
TILE = 12 * 32 * PANELS + 16  # words at the start of scratch: blocks of out on their way there, and a vector
MC = 192  # rows in a task: sixteen panels of 12; half as many where a step takes two numbers of each
NC = 4096  # at most this many columns in a task: A is packed once for all of them
AHEAD = 24  # steps, on a CPU that does not ask by itself: some 300 cycles
FAR = 128  # steps, where B comes from memory: 16 KiB of it
PRODUCTS = {
    "float32": simd.block_rank1,
    "widened": simd.block_widened_pair,
    "mixed": simd.block_mixed_pair,
    "dot_pairs": simd.block_dot_pair,
    "dot_quads": simd.block_dot_quad,
}
NUMBERS = {"mixed": 2}  # of a row of A in a step, where they are not one word
PLAIN = ("float32", "dot_quads")  # kinds whose A is packed as it lies: float32, or words that someone else made


def depth_of(steps: int) -> int:
    """KC for a depth: equal blocks, a multiple of 8, none above KC.

    It decides the rounding, so it depends on K alone.
    """
    blocks = -(-steps // KC)
    return -(-steps // (8 * blocks)) * 8


def rows_of(kind: str) -> int:
    """MC for a kind of product."""
    return MC // NUMBERS.get(kind, 1)


@functools.cache
def block_packer(kind: str, words: bool, lanes: int):
    """The inline function that packs a cache block of A: as it lies, rounded to words, or as the numbers of words."""
    (HIGH, MIDDLE, SINGLE), numbers = TILINGS[lanes].rows, NUMBERS.get(kind, 1)
    if kind == "mixed":
        pack_rows = widened_packer(lanes, words)
    else:
        pack_rows = row_packer(lanes) if words or kind in PLAIN else word_packer(lanes)

    @simd.inline
    def pack_block(a, starts, rows, p, depth, plan, packed):
        """Rows (i, end) of A from step p: panels of HIGH rows, then of MIDDLE, then single ones, each after the one
        before."""
        (i, end), at = rows, TILE
        while i < end:
            if end - i >= HIGH:
                pack_rows(HIGH, a, starts, (i, p), depth, plan, packed, at)
                i, at = i + HIGH, at + HIGH * depth * numbers
            elif end - i >= MIDDLE:
                pack_rows(MIDDLE, a, starts, (i, p), depth, plan, packed, at)
                i, at = i + MIDDLE, at + MIDDLE * depth * numbers
            else:
                pack_rows(SINGLE, a, starts, (i, p), depth, plan, packed, at)
                i, at = i + SINGLE, at + SINGLE * depth * numbers

    return pack_block


@functools.cache
def stepper(kind: str, lanes: int, vectors: int):
    """The inline function that adds to a block, step by step, the products of a panel of A and a panel of B."""
    product, NR, WIDE = PRODUCTS[kind], TILINGS[lanes].NR, lanes * vectors
    numbers, asks, (_, MIDDLE, SINGLE) = NUMBERS.get(kind, 1), "Intel" in cpu().name, TILINGS[lanes].rows

    @simd.inline
    def along(block, rows, packed, a_at, panels, b_at, depth):
        """block (rows x WIDE) after `depth` steps. A panel of B comes from L2. Intel's cores are asked for it ahead:
        with loads alone the multipliers wait (Emerald Rapids: 0.75 of the rate from L1). Zen 5 brings it in by itself,
        and two more memory instructions a step cost it 30 %. With few rows B comes from memory, and is asked for
        farther ahead, as far as L2: the sixteen lines that L1 can wait for are too few to wait for memory."""
        for p in range(depth):
            if asks and rows <= MIDDLE:
                for column in range(0, WIDE, LINE // 4):
                    simd.prefetch_far(panels, b_at + (p + FAR) * NR + column)
            if asks and rows > SINGLE:
                for column in range(0, WIDE, LINE // 4):
                    simd.prefetch(panels, b_at + (p + AHEAD) * NR + column)
            block = product(block, packed, a_at + p * rows * numbers, panels, b_at + p * NR)
        return block

    return along


@functools.cache
def panel_multiplier(kind: str, lanes: int, finish):
    """The inline function that multiplies one panel of B with a packed block of A: the two inner loops."""
    (HIGH, MIDDLE, SINGLE), NR, vectors = TILINGS[lanes].rows, TILINGS[lanes].NR, TILINGS[lanes].vectors
    along, finish_tile, WIDE = stepper(kind, lanes, vectors), finish(lanes), PANELS * NR
    numbers = NUMBERS.get(kind, 1)
    in_rows = finish in (finisher, rounding_finisher)  # out has a block's rows and columns

    @simd.inline
    def micro(rows, operands, at, depth, target, corner, stage):
        """rows x NR of out at corner (i, j): their sum over one block of K, in registers from first to last.

        operands: (packed A, panels of B); at: where this block begins in each; target: (out, residual, bias);
        stage: (is it the first block of K, is it the last). The last block's sum goes to scratch, to a column of the
        tile there, which is corner's third.
        """
        (packed, panels), (a_at, b_at), (out, residual, _), (i, j, column) = operands, at, target, corner
        first, last = stage
        columns, stride = out.shape[1] - j, out.strides[0] // 4
        if last and in_rows:
            expect(out, (i, j), (rows, min(columns, NR)))
        block = along(simd.block_zeros(rows, vectors, lanes), rows, packed, a_at, panels, b_at, depth)
        if last:
            simd.block_store(block, packed, column, WIDE, NR)
        else:
            if not first:
                block = simd.block_add(block, out, i * stride + j, stride, columns)
            elif residual.size:
                base_stride = residual.strides[0] // 4
                block = simd.block_add(block, residual, i * base_stride + j, base_stride, columns)
            simd.block_store(block, out, i * stride + j, stride, columns)

    @simd.inline
    def across(rows, operands, at, reach, target, corner, stage):
        """One panel of A against the panels of B side by side. reach: (depth, columns, words from column to column)."""
        (a_at, b_at), (depth, columns, step), (i, j) = at, reach, corner
        for column in range(0, columns, NR):
            micro(rows, operands, (a_at, b_at + column * step), depth, target, (i, j + column, column), stage)

    @simd.inline
    def down_rows(operands, b_at, reach, target, span, stage, activation):
        """Up to PANELS panels of B against all rows of the packed block; span: (i, end, j)."""
        (i, end, j), at, (first, last) = span, TILE, stage
        while i < end:
            rows = HIGH if end - i >= HIGH else MIDDLE if end - i >= MIDDLE else SINGLE
            if rows == HIGH:
                across(HIGH, operands, (at, b_at), reach, target, (i, j), stage)
            elif rows == MIDDLE:
                across(MIDDLE, operands, (at, b_at), reach, target, (i, j), stage)
            else:
                across(SINGLE, operands, (at, b_at), reach, target, (i, j), stage)
            if last:
                finish_tile((operands[0], 0, WIDE), target, (i, j), (rows, reach[1]), (first, activation))
            i, at = i + rows, at + rows * reach[0] * numbers

    return down_rows


@functools.cache
def product_kernel(kind: str, lanes: int, finish=finisher, words: bool = False):
    """The kernel for a kind of product and a vector width.

    finish: what becomes of a tile, see `finish.finisher`. words: A comes in bfloat16 words, to be packed as they lie.
    """
    pack_block, down_rows = block_packer(kind, words, lanes), panel_multiplier(kind, lanes, finish)
    MC = rows_of(kind)
    OUT, form = simd.ROUNDED_2D if finish is rounding_finisher else simd.OUTPUT_2D, ".words" if words else ""
    NR, WIDE = TILINGS[lanes].NR, PANELS * TILINGS[lanes].NR

    @simd.inline
    def one_task(task, a, starts, panels, target, plan, packed):
        """MC rows x NC columns of out. target: (out, residual, bias)."""
        M, N, K, KC, NC, activation = plan[1], plan[2], plan[3], plan[5], plan[6], plan[7]
        groups = (N + NC - 1) // NC
        i, j0 = task // groups * MC, task % groups * NC
        end, j1 = min(i + MC, M), min(j0 + NC, N)
        for p in range(0, K, KC):
            depth = min(KC, K - p)
            pack_block(a, starts, (i, end), p, depth, plan, packed)
            for j in range(j0, j1, WIDE):
                stage, reach = (p == 0, p + depth == K), (depth, min(WIDE, j1 - j), K)
                down_rows((packed, panels), j * K + p * NR, reach, target, (i, end, j), stage, activation)

    signature = types.void(simd.INPUT, simd.INDICES, simd.INPUT, OUT, simd.INPUT, simd.INPUT_2D, simd.PLAN, simd.OUTPUT)

    @simd.kernel(signature, name=f"matmul.packed.{kind}.{lanes}.{finish.__name__}{form}")
    def packed_product(a, starts, panels, out, bias, residual, plan, scratch):
        """plan: next task, M, N, steps along K, A's step, KC, NC, what the finisher gets beside `first`, K in numbers.

        That is an activation; for `matmul_argmax`'s finishers, columns in a group.
        """
        M, N, NC = plan[1], plan[2], plan[6]
        tasks = ((M + MC - 1) // MC) * ((N + NC - 1) // NC)
        task = simd.fetch_add(plan, 0, 1)
        while task < tasks:
            one_task(task, a, starts, panels, (out, residual, bias), plan, scratch)
            task = simd.fetch_add(plan, 0, 1)

    return packed_product


def columns_of(M: int, N: int, NR: int, MC: int = MC) -> int:
    """NC: as wide as possible while every thread finds some four tasks of MC rows to draw; a multiple of NR.

    It changes no result.
    """
    wanted = 4 * thread_count() if thread_count() > 1 else 1
    groups = max(-(-wanted // -(-M // MC)), -(-N // NC))
    return -(-N // (groups * NR)) * NR


def room_for(kind: str, depth: int, lanes: int) -> int:
    """Words of scratch: a tile, and MC rows of `depth` steps, of which the last may be written a vector too wide."""
    return TILE + rows_of(kind) * NUMBERS.get(kind, 1) * (depth + lanes) + lanes * lanes


def multiply(kind: str, rows: Rows, weights: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    """The run function of every packed rung: out = activation(rows @ weights + residual + bias)."""
    if weights.K == 0:
        finish_empty(out, epilogue)
        return
    lanes, M, N = cpu().lanes, rows.count, weights.N
    steps = weights.K if kind == "float32" else words_of(weights.K)
    rows, words = (rows, False) if kind == "float32" else in_words(rows)
    out, finish = rounded_out(out)
    origin, starts, step = rows.addresses()
    MC, depth = rows_of(kind), depth_of(steps)
    NC = columns_of(M, N, TILINGS[lanes].NR, MC)
    activation = ACTIVATIONS[epilogue.activation]
    plan = np.array([0, M, N, steps, step, depth, NC, activation, weights.K], np.int64)
    arrays = (origin, starts, weights.data, out, epilogue.bias, epilogue.residual, plan)
    kernel = product_kernel(kind, lanes, finish, words)
    launch(kernel, *arrays, tasks=-(-M // MC) * -(-N // NC), words=room_for(kind, depth, lanes))


def finish_empty(out: np.ndarray, epilogue: Epilogue) -> None:
    """A sum of nothing is zero: out is what the residual, the bias and the activation make of that."""
    out[...] = epilogue.residual if epilogue.residual.size else 0
    if epilogue.bias.size:
        out += epilogue.bias
    for at in np.ndindex(out.shape):
        out[at] = activate_number.py_func(float(out[at]), ACTIVATIONS[epilogue.activation])
