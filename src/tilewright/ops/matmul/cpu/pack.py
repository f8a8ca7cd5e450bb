"""Packing: operands laid out in the order in which the micro-kernel reads them.

B (K, N) becomes panels of NR columns, [N / NR][K][NR], zeros beyond N: a step along K reads one contiguous row of a
panel. A's rows become panels of 12, 4 or 1 rows, [K][rows]: a step reads one contiguous column. A is packed inside the
product, a cache block at a time; B, the weights, once (`prepare`).

Addresses: element (p, n) of B is `source.flat[starts[n] + p * step]`, and row i of A begins at `starts[i]` and steps
likewise. So B may be transposed or one tap of a convolution, and A's rows may be gathered from a table, without a copy.
"""

import functools
from dataclasses import dataclass

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch
from tilewright.ops.core.memory import empty
from tilewright.ops.matmul.operands import Packed, addresses


@dataclass(frozen=True)
class Tiling:
    """The register block for one vector width: MR rows (and the smaller panels for the last rows) by NR columns."""

    lanes: int
    vectors: int
    rows: tuple[int, int, int]

    @property
    def NR(self) -> int:
        """Columns of a block."""
        return self.lanes * self.vectors


TILINGS = {
    16: Tiling(16, 2, (12, 4, 1)),  # 24 accumulators + 2 of B + a broadcast, of AVX-512's 32 registers
    8: Tiling(8, 2, (6, 4, 1)),  # 12 + 2 + 1 of AVX2's 16
    4: Tiling(4, 4, (4, 2, 1)),  # 16 + 4 + 1 of NEON's 32
}


@functools.cache
def row_packer(lanes: int):
    """The inline function that packs one panel of A from float32."""

    @simd.inline
    def pack_rows(rows, source, starts, corner, depth, plan, target, at):
        """target[at + q * rows + i] = A[first + i, p + q], q below depth.

        rows: a constant; corner: (first, p); plan[4]: A's step.
        """
        (first, p), step = corner, plan[4]
        last = first + rows - 1
        whole = depth - depth % lanes if step == 1 and rows > 1 else 0
        for q in range(0, whole, lanes):
            square = simd.block_gather(simd.block_zeros(lanes, 1, lanes), source, starts, first, last, p + q)
            # each stored row is `lanes` wide but they lie `rows` apart: the next one overwrites what is too much
            simd.block_store(simd.block_transpose(square), target, at + q * rows, rows, lanes)
        for i in range(rows):
            start = starts[first + i] + p * step
            for q in range(whole, depth):
                target[at + q * rows + i] = simd.fetch(source, start + q * step)

    return pack_rows


@functools.cache
def panel_kernel(lanes: int):
    """The kernel that packs B."""
    NR = TILINGS[lanes].NR

    @simd.inline
    def copy_rows(source, start, step, K, panels, at):
        """A panel whose NR columns lie side by side in memory."""
        for p in range(K):
            for j in range(0, NR, lanes):
                simd.store(panels, at + p * NR + j, simd.load(source, start + p * step + j, lanes))

    @simd.inline
    def transpose_columns(source, starts, plan, first, panels, at):
        """`lanes` columns of a panel, from columns that lie anywhere; those beyond N become zeros."""
        K, N, step = plan[1], plan[2], plan[3]
        whole = K - K % lanes if step == 1 and first + lanes <= N else 0
        for p in range(0, whole, lanes):
            square = simd.block_gather(simd.block_zeros(lanes, 1, lanes), source, starts, first, N - 1, p)
            simd.block_store(simd.block_transpose(square), panels, at + p * NR, NR, lanes)
        for j in range(lanes):
            for p in range(whole, K):
                inside = first + j < N
                panels[at + p * NR + j] = simd.fetch(source, starts[first + j] + p * step) if inside else np.float32(0)

    signature = types.void(simd.INPUT, simd.INDICES, simd.PLAN, simd.OUTPUT, simd.OUTPUT)

    @simd.kernel(signature, name=f"matmul.pack_panels.{lanes}")
    def fill_panels(source, starts, plan, panels, scratch):
        """plan: next task, K, N, step. A task is a panel."""
        K, N, step = plan[1], plan[2], plan[3]
        panel = simd.fetch_add(plan, 0, 1)
        while panel * NR < N:
            first, at = panel * NR, panel * K * NR
            if first + NR <= N and starts[first + NR - 1] - starts[first] == NR - 1:
                copy_rows(source, starts[first], step, K, panels, at)
            else:
                for j in range(0, NR, lanes):
                    transpose_columns(source, starts, plan, first + j, panels, at + j)
            panel = simd.fetch_add(plan, 0, 1)

    return fill_panels


def pack_panels(b: np.ndarray, rung: str) -> Packed:
    """b (K, N), float32 with any strides, as panels."""
    K, N = b.shape
    lanes = cpu().lanes
    NR = TILINGS[lanes].NR
    count = -(-N // NR)
    panels = empty(count * K * NR)
    if panels.size:
        source, starts, step = addresses(b.T)
        plan = np.array([0, K, N, step], np.int64)
        launch(panel_kernel(lanes), source, starts, plan, panels, tasks=count, words=1)
    return Packed(rung, K, N, "float32", panels)
