"""embedding in Triton: out[i, c] = table[ids[i], c] (+ position_table[positions[i], c] if positions are given).

An index outside its table gives NaN. A program loads a block of several rows, 16 bytes per thread and load, adds the
rows of position_table and stores the sum. The limit is memory bandwidth, or the L2 cache if rows repeat. It is slower
than `simt.warps` on rows shorter than 32 bytes.
"""

from functools import cache
from typing import Any, NamedTuple

import triton
import triton.language as tl

from tilewright.ops.core.gpu.blocks import RowBlock
from tilewright.ops.core.gpu.early import early, wait_for_inputs

WIDEST = 256  # most columns of a program: GPT-2's width is 3 x 256, so no lane is idle
PROGRAM_ELEMENTS, WARPS = 1024, 2  # 16 elements per thread


class Lookup(NamedTuple):
    """Pointers to indices int32 or int64 (n,) and to a table (V, C) of any float dtype, both contiguous."""

    indices: Any
    table: Any
    V: int


@triton.jit
def picked(lookup, C: tl.constexpr, rows, columns, inside):
    """float32 (BM, BC): table[indices[rows], columns] of a `Lookup`; NaN for an index outside the table."""
    index = tl.load(lookup.indices + rows).to(tl.int64)
    known = (index >= 0) & (index < lookup.V)
    offsets = tl.where(known, index, 0)[:, None] * C + columns[None, :]
    values = tl.load(lookup.table + offsets, mask=inside, other=0.0).to(tl.float32)
    return tl.where(known[:, None], values, float("nan"))


@triton.jit(do_not_specialize=["n"])
def gather(tokens, positions, out, n, block: tl.constexpr):
    """tokens: a `Lookup` of ids. positions: a `Lookup`, or None. out: pointer to (n, C) of any float dtype, contiguous.
    block: a `RowBlock`."""
    wait_for_inputs()
    C: tl.constexpr = block.C
    BM: tl.constexpr = block.BM
    BC: tl.constexpr = block.BC
    own_rows = tl.program_id(0) * BM + tl.arange(0, BM)
    rows = tl.minimum(own_rows, n - 1).to(tl.int64)
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = (columns < C)[None, :]
    values = picked(tokens, C, rows, columns, inside)
    if positions is not None:
        values += picked(positions, C, rows, columns, inside)
    offsets = rows[:, None] * C + columns[None, :]
    tl.store(out + offsets, values.to(out.dtype.element_ty), mask=inside & (own_rows < n)[:, None])


@cache
def block_for(C: int) -> RowBlock:
    """The block of a program for rows of C elements."""
    BC = min(triton.next_power_of_2(C), WIDEST)
    return RowBlock(C, PROGRAM_ELEMENTS // BC, BC)


def run(ids, table, positional, out) -> None:
    """Launch `gather` on tensors: out = table[ids]. positional: (positions, position_table) to add, or None."""
    n, C = out.shape
    block, positions = block_for(C), None
    if positional:
        indices, position_table = positional
        positions = Lookup(indices, position_table, len(position_table))
    grid = (-(-n // block.BM), -(-C // block.BC))
    gather[grid](Lookup(ids, table, len(table)), positions, out, n, block, num_warps=WARPS, **early(n))
