"""Rows of a table, 16 bytes per load, plus rows of a second table."""

from functools import cache

import triton
import triton.language as tl

from tilewright.ops.core.gpu.blocks import RowBlock

WIDEST = 256  # columns of a program: 768, GPT-2's width, is three times as many, so no lane is idle
SHARE, WARPS = 1024, 2  # elements of a program, 16 per thread


@triton.jit
def picked(index, table, V, C: tl.constexpr, rows, columns, inside):
    """float32 (BM, BC): rows index[rows] of table (V, C); NaN for an index outside the table."""
    at = tl.load(index + rows).to(tl.int64)
    known = (at >= 0) & (at < V)
    number = tl.load(table + tl.where(known, at, 0)[:, None] * C + columns[None, :], mask=inside, other=0.0)
    return tl.where(known[:, None], number.to(tl.float32), float("nan"))


@triton.jit(do_not_specialize=["n"])
def gather(ids, table, places, out, n, sizes, block: tl.constexpr):
    """out (n, C) = table[ids] + position_table[positions]; places: (positions, position_table) or None; sizes: (V, P).

    A copy and one addition: bound by memory, and by the L2 cache where rows repeat. Loses on tables whose rows are
    shorter than 32 bytes.
    """
    V, P = sizes
    C: tl.constexpr = block.C
    BM: tl.constexpr = block.BM
    BC: tl.constexpr = block.BC
    wanted = tl.program_id(0) * BM + tl.arange(0, BM)
    rows = tl.minimum(wanted, n - 1).to(tl.int64)
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = (columns < C)[None, :]
    number = picked(ids, table, V, C, rows, columns, inside)
    if places is not None:
        positions, position_table = places
        number += picked(positions, position_table, P, C, rows, columns, inside)
    at = rows[:, None] * C + columns[None, :]
    tl.store(out + at, number.to(out.dtype.element_ty), mask=inside & (wanted < n)[:, None])


@cache
def shape_for(C: int) -> tuple[int, int, int]:
    """(ROWS, COLUMNS, warps) by the width of a row."""
    columns = min(triton.next_power_of_2(C), WIDEST)
    return SHARE // columns, columns, WARPS


def run(ids, table, places, out, shape: tuple[int, int, int] | None = None) -> None:
    """The rung's run function; shape: other than the rung's own, for measurements."""
    n, C = out.shape
    rows, columns, warps = shape or shape_for(C)
    sizes = (len(table), len(places[1]) if places else 0)
    grid = (-(-n // rows), -(-C // columns))
    gather[grid](ids, table, places, out, n, sizes, RowBlock(C, rows, columns), num_warps=warps)
