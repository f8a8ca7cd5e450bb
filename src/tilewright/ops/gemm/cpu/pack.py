"""Packing: operands laid out in the order in which the micro-kernel reads them.

B (K, N) becomes panels of NR columns, [N / NR][K][NR], with zeros beyond N: a step along K reads one contiguous row of
a panel. A's rows become panels of 12, 4 or 1 rows, [K][rows]: a step reads one contiguous column. The product packs A
itself, one cache block at a time. `prepare` packs B, the weights, once.

Strided operands are packed without a copy. B may be transposed, or one tap of a convolution; A's rows may be gathered
from a table.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch
from tilewright.ops.core.memory import empty
from tilewright.ops.gemm.cpu.tiling import TILINGS
from tilewright.ops.gemm.operands import Packed, addresses


class Source(NamedTuple):
    """A strided matrix as packers read it: element p of row i is `values[starts[i] + p * step]`.

    starts: int64, one per row. K: elements in a row. Only the functions that pack rows as words of two bfloat16 read K,
    and only if `step` is 1.
    """

    values: np.ndarray
    starts: np.ndarray
    step: int
    K: int


@functools.cache
def row_packer(lanes: int):
    """The inline function that packs one panel of A from float32."""

    @simd.inline
    def pack_rows(rows, source, first, p, depth, target, at):
        """target[at + q * rows + i] = A[first + i, p + q] for q < depth. rows: a constant; source: a `Source`."""
        last, step = first + rows - 1, source.step
        whole = depth - depth % lanes if step == 1 and rows > 1 else 0
        for q in range(0, whole, lanes):
            square = simd.block_zeros(lanes, 1, lanes)
            square = simd.block_gather(square, source.values, source.starts, first, last, p + q)
            # a stored row is `lanes` wide, the next one begins `rows` elements later and overwrites the excess
            simd.block_store(simd.block_transpose(square), target, at + q * rows, rows, lanes)
        for i in range(rows):
            start = source.starts[first + i] + p * step
            for q in range(whole, depth):
                target[at + q * rows + i] = simd.fetch(source.values, start + q * step)

    return pack_rows


class Columns(NamedTuple):
    """B as its packer reads it: K x N, element p of column n at `starts[n] + p * step`."""

    K: int
    N: int
    step: int


@functools.cache
def panel_kernel(lanes: int):
    """The kernel that packs B."""
    NR = TILINGS[lanes].NR

    @simd.inline
    def copy_rows(source, start, step, K, panels, at):
        """A panel whose NR columns are adjacent in memory."""
        for p in range(K):
            for j in range(0, NR, lanes):
                simd.store(panels, at + p * NR + j, simd.load(source, start + p * step + j, lanes))

    @simd.inline
    def transpose_columns(source, starts, b, first, panels, at):
        """`lanes` columns of a panel, from columns at any offsets; columns beyond N become zeros."""
        whole = b.K - b.K % lanes if b.step == 1 and first + lanes <= b.N else 0
        for p in range(0, whole, lanes):
            square = simd.block_gather(simd.block_zeros(lanes, 1, lanes), source, starts, first, b.N - 1, p)
            simd.block_store(simd.block_transpose(square), panels, at + p * NR, NR, lanes)
        for j in range(lanes):
            for p in range(whole, b.K):
                inside = first + j < b.N
                value = simd.fetch(source, starts[first + j] + p * b.step) if inside else np.float32(0)
                panels[at + p * NR + j] = value

    signature = types.void(simd.INPUT, simd.INDICES, simd.record(Columns), simd.OUTPUT, simd.TASKS, simd.OUTPUT)

    @simd.kernel(signature, name=f"gemm.pack_panels.{lanes}")
    def fill_panels(source, starts, b, panels, tasks, scratch):
        """source: memory of B, float32; column n begins at offset starts[n]. b: `Columns`. A task is one panel."""
        panel = simd.draw(tasks)
        while panel >= 0:
            first, at = panel * NR, panel * b.K * NR
            if first + NR <= b.N and starts[first + NR - 1] - starts[first] == NR - 1:
                copy_rows(source, starts[first], b.step, b.K, panels, at)
            else:
                for j in range(0, NR, lanes):
                    transpose_columns(source, starts, b, first + j, panels, at + j)
            panel = simd.draw(tasks)

    return fill_panels


def pack_panels(b: np.ndarray, rung: str) -> Packed:
    """Panels of b (K, N), float32 with any strides."""
    K, N = b.shape
    lanes = cpu().lanes
    NR = TILINGS[lanes].NR
    count = -(-N // NR)
    panels = empty(count * K * NR)
    if panels.size:
        source, starts, step = addresses(b.T)
        launch(panel_kernel(lanes), source, starts, Columns(K, N, step), panels, tasks=count, words=1)
    return Packed(rung, K, N, "float32", panels)
