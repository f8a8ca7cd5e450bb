"""Rows of a table, 16 bytes a load, with those of a second table added on the way."""

from functools import cache

import triton
import triton.language as tl

WIDEST = 256  # numbers of a row that a program has: 768, GPT-2's, is three times as many, and none is idle
SHARE, WARPS = 1024, 2  # numbers that a program has, 16 a thread


@triton.jit
def picked(index, table, V, C: tl.constexpr, rows, columns, inside):
    """float32 (ROWS, COLUMNS): rows index[rows] of table (V, C); NaN for an index that it does not have."""
    at = tl.load(index + rows).to(tl.int64)
    known = (at >= 0) & (at < V)
    number = tl.load(table + tl.where(known, at, 0)[:, None] * C + columns[None, :], mask=inside, other=0.0)
    return tl.where(known[:, None], number.to(tl.float32), float("nan"))


@triton.jit(do_not_specialize=["n"])
def gather(ids, table, places, out, n, sizes, SHAPE: tl.constexpr):
    """out (n, C) = table[ids] + position_table[positions]; places: those two or None; sizes: (V, P); SHAPE: C, and rows
    and columns of out a program.

    A copy, and one addition: bound by memory, and by the L2 cache where rows repeat. Loses on tables so narrow that a
    row is less than 32 bytes.
    """
    V, P = sizes
    C: tl.constexpr = SHAPE[0]
    ROWS: tl.constexpr = SHAPE[1]
    COLUMNS: tl.constexpr = SHAPE[2]
    wanted = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows = tl.minimum(wanted, n - 1).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (columns < C)[None, :]
    number = picked(ids, table, V, C, rows, columns, inside)
    if places is not None:
        number += picked(places[0], places[1], P, C, rows, columns, inside)
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
    gather[grid](ids, table, places, out, n, sizes, (C, rows, columns), num_warps=warps)
