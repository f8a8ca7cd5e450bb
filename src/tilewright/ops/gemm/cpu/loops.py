"""The five loops around the micro-kernel, on packed panels, shared by any number of threads.

out (M, N) = A (M, K) @ B (K, N) is cut into tasks of MC rows x NC columns. A task walks K in blocks of KC. For each
block it packs its MC x KC elements of A, which then stay in L2. It runs the micro-kernel down the rows for PANELS
panels of B at a time (KC x NR each, also in L2). A panel of A stays in L1 while these panels of B stream past it. A
block's sum starts from zero in registers and is then added to out, so an element's rounding depends on K alone. The
limit is the rate of multiply-adds; with few rows it is reading B from memory. It is slower than `cpu.vectors` where b
is not prepared and A has few rows: packing b takes longer than multiplying by it.

The same loops serve bfloat16, where a step along K is one word of two elements. Only the packing of A and the product
differ, see `PRODUCTS`.
Source: Goto and van de Geijn 2008; the names of the loops are those of Van Zee and van de Geijn, "BLIS", 2015.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch, thread_count
from tilewright.ops.core.memory import LINE
from tilewright.ops.gemm.cpu.epilogue import (
    ACTIVATIONS,
    Target,
    Tile,
    activate_number,
    finisher,
    prefetch_block,
    rounded_out,
    rounding_finisher,
)
from tilewright.ops.gemm.cpu.pack import TILINGS, Source, row_packer
from tilewright.ops.gemm.cpu.words import in_words, widened_packer, word_packer, words_of
from tilewright.ops.gemm.operands import Epilogue, Packed, Rows

KC = 768  # most steps of K in a block: A's 192 rows are 576 KiB of L2; half of KC costs 10 % more traffic to out
PANELS = 4  # panels of B per panel of A, which stays in L1; more of them finish longer pieces of out's rows
TILE = 12 * 32 * PANELS + 16  # words at the start of scratch: blocks of finished sums, and one vector
MC = 192  # rows in a task: sixteen panels of 12; half as many where a step takes two elements of each
NC = 4096  # most columns in a task: A is packed once for all of them
PREFETCH = 24  # steps from the use of a panel of B to its prefetch into L1: about 300 cycles
FAR_PREFETCH = 128  # steps, to the prefetch into L2 where B comes from memory: 16 KiB
PRODUCTS = {  # kind of product -> what one step adds to a register block
    "float32": simd.block_rank1,
    "widen_both": simd.block_widened_pair,  # words of two bfloat16 in both operands, widened in registers
    "widen_b": simd.block_mixed_pair,  # B's words are widened in registers, A's elements already when A is packed
    "dot_pairs": simd.block_dot_pair,  # an instruction multiplies pairs of bfloat16
    "dot_quads": simd.block_dot_quad,  # an instruction multiplies four bytes and adds int32
    "dot_signed_quads": simd.block_dot_signed_quad,  # the same by several instructions of AVX2
}
SIGNED_ROWS = 5  # of "dot_signed_quads": its product needs three registers beside 10 sums and 2 of B; AVX2 has 16
ELEMENTS = {"widen_b": 2}  # packed elements of a row of A per step, where that is not 1
PLAIN = ("float32", "dot_quads", "dot_signed_quads")  # A is packed unchanged: float32, or words that the caller made


class Product(NamedTuple):
    """Sizes of one product. K, KC: steps along K in all and in a block; a step is one float32 or one word. depth:
    elements along K. step: elements from one to the next in a row of A. A task is MC rows x NC columns of out.
    argument: a number for the function that finishes a tile, such as the activation."""

    M: int
    N: int
    K: int
    depth: int
    step: int
    MC: int
    KC: int
    NC: int
    argument: int


class Block(NamedTuple):
    """A block of K: its `depth` in steps, and whether it is the first or the last block."""

    depth: int
    first: bool
    last: bool


def heights(kind: str, lanes: int) -> tuple[int, int, int]:
    """Rows of register blocks for a kind of product: the most first."""
    high, middle, single = TILINGS[lanes].rows
    return SIGNED_ROWS if kind == "dot_signed_quads" else high, middle, single


def depth_of(steps: int) -> int:
    """KC for a depth in steps: blocks of equal size, a multiple of 8, at most KC. It decides the rounding, so it
    depends on K alone."""
    blocks = -(-steps // KC)
    return -(-steps // (8 * blocks)) * 8


def rows_of(kind: str) -> int:
    """MC for a kind of product."""
    return MC // ELEMENTS.get(kind, 1)


@functools.cache
def block_packer(kind: str, words: bool, lanes: int):
    """The inline function that packs a cache block of A. words: A's rows are bfloat16 words already."""
    (HIGH, MIDDLE, SINGLE), elements = heights(kind, lanes), ELEMENTS.get(kind, 1)
    if kind == "widen_b":
        pack_rows = widened_packer(lanes, words)
    else:
        pack_rows = row_packer(lanes) if words or kind in PLAIN else word_packer(lanes)

    @simd.inline
    def pack_block(source, i, end, p, depth, packed):
        """Rows i to end of A, `depth` steps from step p: first panels of HIGH rows, then of MIDDLE, then of one."""
        at = np.int64(TILE)  # no literal, for which Numba would compile the calls below once more
        while i < end:
            if end - i >= HIGH:
                pack_rows(HIGH, source, i, p, depth, packed, at)
                i, at = i + HIGH, at + HIGH * depth * elements
            elif end - i >= MIDDLE:
                pack_rows(MIDDLE, source, i, p, depth, packed, at)
                i, at = i + MIDDLE, at + MIDDLE * depth * elements
            else:
                pack_rows(SINGLE, source, i, p, depth, packed, at)
                i, at = i + SINGLE, at + SINGLE * depth * elements

    return pack_block


@functools.cache
def stepper(kind: str, lanes: int, vectors: int):
    """The inline function that multiplies a panel of A by a panel of B and adds to a register block, step by step.

    A panel of B is read from L2. Intel's cores need a prefetch: with loads alone the multipliers wait (Emerald Rapids
    reaches 0.75 of the rate from L1). Zen 5 prefetches in hardware, and two more memory instructions per step cost it
    30 %. With few rows B is read from memory. It is then prefetched earlier, into L2: L1 can wait for sixteen lines,
    which are too few to hide the latency of memory.
    """
    product, NR, WIDE = PRODUCTS[kind], TILINGS[lanes].NR, lanes * vectors
    elements, prefetches, (_, MIDDLE, SINGLE) = ELEMENTS.get(kind, 1), "Intel" in cpu().name, heights(kind, lanes)

    @simd.inline
    def along(block, rows, packed, a_at, panels, b_at, depth):
        """block (rows x WIDE) + the products of `depth` steps. a_at, b_at: offsets of the panels."""
        for p in range(depth):
            if prefetches and rows <= MIDDLE:
                for column in range(0, WIDE, LINE // 4):
                    simd.prefetch_far(panels, b_at + (p + FAR_PREFETCH) * NR + column)
            if prefetches and rows > SINGLE:
                for column in range(0, WIDE, LINE // 4):
                    simd.prefetch(panels, b_at + (p + PREFETCH) * NR + column)
            block = product(block, packed, a_at + p * rows * elements, panels, b_at + p * NR)
        return block

    return along


class Corner(NamedTuple):
    """Top left corner of a register block: row i and column j of out, `column` of the tile of sums in scratch."""

    i: int
    j: int
    column: int


class Operands(NamedTuple):
    """packed: scratch, with the tile of sums and the packed block of A. panels: all of B."""

    packed: np.ndarray
    panels: np.ndarray


@functools.cache
def micro_kernel(kind: str, lanes: int, finish):
    """The inline function that multiplies one panel of A by one panel of B over one block of K."""
    vectors, NR, WIDE = TILINGS[lanes].vectors, TILINGS[lanes].NR, PANELS * TILINGS[lanes].NR
    along = stepper(kind, lanes, vectors)
    in_rows = finish in (finisher, rounding_finisher)  # out has a block's rows and columns

    @simd.inline
    def micro(rows, operands, a_at, b_at, target, corner, block):
        """rows x NR sums in registers. The last block of K stores them in scratch, the others add them to out."""
        i, j, out, residual = corner.i, corner.j, target.out, target.residual
        columns, stride = out.shape[1] - j, out.strides[0] // 4
        if in_rows:
            prefetch_block(out, i, j, rows, min(columns, NR))
        sums = simd.block_zeros(rows, vectors, lanes)
        sums = along(sums, rows, operands.packed, a_at, operands.panels, b_at, block.depth)
        if block.last:
            simd.block_store(sums, operands.packed, corner.column, WIDE, NR)
        else:
            if not block.first:
                sums = simd.block_add(sums, out, i * stride + j, stride, columns)
            elif residual.size:
                base_stride = residual.strides[0] // 4
                sums = simd.block_add(sums, residual, i * base_stride + j, base_stride, columns)
            simd.block_store(sums, out, i * stride + j, stride, columns)

    return micro


class Piece(NamedTuple):
    """A block of K and `columns` columns of B. K: steps in a whole panel of B. argument: see `Product`."""

    block: Block
    columns: int
    K: int
    argument: int


@functools.cache
def panel_multiplier(kind: str, lanes: int, finish):
    """The inline function that multiplies a packed block of A by up to PANELS panels of B: the two inner loops."""
    (HIGH, MIDDLE, SINGLE), NR = heights(kind, lanes), TILINGS[lanes].NR
    micro, finish_tile, WIDE = micro_kernel(kind, lanes, finish), finish(lanes), PANELS * NR
    elements = ELEMENTS.get(kind, 1)

    @simd.inline
    def across(rows, operands, a_at, b_at, target, i, j, piece):
        """One panel of A by the adjacent panels of B, each piece.K steps long."""
        for column in range(0, piece.columns, NR):
            corner = Corner(i, j + column, column)
            micro(rows, operands, a_at, b_at + column * piece.K, target, corner, piece.block)

    @simd.inline
    def down_rows(operands, b_at, target, i, end, j, piece):
        """All panels of A, rows i to end, by piece.columns columns of B from column j on."""
        at = np.int64(TILE)  # no literal, for which Numba would compile the calls below once more
        while i < end:
            rows = HIGH if end - i >= HIGH else MIDDLE if end - i >= MIDDLE else SINGLE
            if rows == HIGH:
                across(HIGH, operands, at, b_at, target, i, j, piece)
            elif rows == MIDDLE:
                across(MIDDLE, operands, at, b_at, target, i, j, piece)
            else:
                across(SINGLE, operands, at, b_at, target, i, j, piece)
            if piece.block.last:
                tile = Tile(operands.packed, 0, WIDE, rows, piece.columns)
                finish_tile(tile, target, i, j, piece.block.first, piece.argument)
            i, at = i + rows, at + rows * piece.block.depth * elements

    return down_rows


@functools.cache
def product_kernel(kind: str, lanes: int, finish=finisher, words: bool = False):
    """The kernel for a kind of product and a vector width.

    finish: makes the function that finishes a tile of sums, see `epilogue.finisher`. words: A's rows are bfloat16 words
    already.
    """
    pack_block, down_rows = block_packer(kind, words, lanes), panel_multiplier(kind, lanes, finish)
    OUT, form = simd.ROUNDED_2D if finish is rounding_finisher else simd.OUTPUT_2D, ".words" if words else ""
    NR, WIDE = TILINGS[lanes].NR, PANELS * TILINGS[lanes].NR

    @simd.inline
    def one_task(task, source, operands, target, job):
        """MC rows x NC columns of out."""
        groups = (job.N + job.NC - 1) // job.NC
        i, j0 = task // groups * job.MC, task % groups * job.NC
        end, j1 = min(i + job.MC, job.M), min(j0 + job.NC, job.N)
        for p in range(0, job.K, job.KC):
            depth = min(job.KC, job.K - p)
            pack_block(source, i, end, p, depth, operands.packed)
            for j in range(j0, j1, WIDE):
                block = Block(depth, p == 0, p + depth == job.K)
                piece = Piece(block, min(WIDE, j1 - j), job.K, job.argument)
                down_rows(operands, j * job.K + p * NR, target, i, end, j, piece)

    signature = types.void(
        simd.INPUT, simd.INDICES, simd.INPUT, OUT, simd.INPUT, simd.INPUT_2D,
        simd.record(Product), simd.TASKS, simd.OUTPUT,
    )  # fmt: skip

    @simd.kernel(signature, name=f"gemm.{kind}.{lanes}.{finish.__name__}{form}")
    def packed_product(a, starts, panels, out, bias, residual, job, tasks, scratch):
        """out (M, N), float32 or bfloat16. a: memory of A, float32; row i begins at offset starts[i]. panels: packed B.
        bias (N,), residual (M, N): float32 or empty. job: a `Product`. tasks: the task counter."""
        source = Source(a, starts, job.step, job.depth)
        operands, target = Operands(scratch, panels), Target(out, residual, bias)
        task = simd.draw(tasks)
        while task >= 0:
            one_task(task, source, operands, target, job)
            task = simd.draw(tasks)

    return packed_product


def columns_of(M: int, N: int, NR: int, MC: int = MC) -> int:
    """NC: as wide as possible with about four tasks of MC rows per thread; a multiple of NR. It changes no result."""
    wanted = 4 * thread_count() if thread_count() > 1 else 1
    groups = max(-(-wanted // -(-M // MC)), -(-N // NC))
    return -(-N // (groups * NR)) * NR


def scratch_words(kind: str, depth: int, lanes: int) -> int:
    """float32 elements of scratch: a tile of sums and MC rows of `depth` steps. A packer may write one vector beyond
    the last row."""
    return TILE + rows_of(kind) * ELEMENTS.get(kind, 1) * (depth + lanes) + lanes * lanes


def multiply(rows: Rows, weights: Packed, out: np.ndarray, epilogue: Epilogue, *, kind: str) -> None:
    """out = activation(rows @ weights + residual + bias), for every rung with packed weights.

    kind: a key of PRODUCTS, the variants of the product.
    """
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
    job = Product(M, N, K=steps, depth=weights.K, step=step, MC=MC, KC=depth, NC=NC,
                  argument=ACTIVATIONS[epilogue.activation])  # fmt: skip
    arrays = origin, starts, weights.data, out, epilogue.bias, epilogue.residual
    words_each = scratch_words(kind, depth, lanes)
    kernel = product_kernel(kind, lanes, finish, words)
    launch(kernel, *arrays, job, tasks=-(-M // MC) * -(-N // NC), words=words_each)


def finish_empty(out: np.ndarray, epilogue: Epilogue) -> None:
    """out where K is 0: sums of zero, with residual, bias and activation."""
    out[...] = epilogue.residual if epilogue.residual.size else 0
    if epilogue.bias.size:
        out += epilogue.bias
    for at in np.ndindex(out.shape):
        out[at] = activate_number.py_func(float(out[at]), ACTIVATIONS[epilogue.activation])
