"""rope, one element after the other: with a and b the halves of a head's rotated part, a cos - b sin, b cos + a sin.

`naive`, the lowest rung, is limited by cosine and sine, which take about fifty times as long as the products that they
serve. `shared` computes them once per row, for all heads. `table` reads them. All three run on one thread, and take
rows of 16 bits by way of a float32 copy.
"""

import math

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.core.arrays import BFLOAT16, put_back
from tilewright.ops.rope.operands import Rotation

ROWS = simd.INPUT_2D, simd.INDICES
OUT = types.int64, simd.OUTPUT_2D


@simd.inline
def turn(x, out, i, at, F, cos, sin):
    """The pair (x[i, at], x[i, at + F]), turned."""
    a, b = x[i, at], x[i, at + F]
    out[i, at] = a * cos - b * sin
    out[i, at + F] = b * cos + a * sin


@simd.inline
def keep(x, out, i, first, end):
    """Elements of row i that are not rotated."""
    for at in range(first, end):
        out[i, at] = x[i, at]


@simd.kernel(types.void(*ROWS, simd.INPUT, *OUT), name="rope.naive")
def naive(x, positions, frequencies, heads, out):
    """x, out: float32 (rows, heads * D); out may be x. positions: int64 (rows,). frequencies: float32 (F,)."""
    F, D = frequencies.size, x.shape[1] // heads
    for i in range(x.shape[0]):
        for h in range(heads):
            for c in range(F):
                angle = np.float32(positions[i]) * frequencies[c]
                cos, sin = np.float32(math.cos(np.float64(angle))), np.float32(math.sin(np.float64(angle)))
                turn(x, out, i, h * D + c, F, cos, sin)
            keep(x, out, i, h * D + 2 * F, h * D + D)


@simd.kernel(types.void(*ROWS, simd.INPUT, simd.OUTPUT, *OUT), name="rope.shared")
def shared(x, positions, frequencies, turns, heads, out):
    """As `naive`. turns: float32 (2 F,), for a row's cosines, then its sines."""
    F, D = frequencies.size, x.shape[1] // heads
    for i in range(x.shape[0]):
        for c in range(F):
            angle = np.float32(positions[i]) * frequencies[c]
            turns[c], turns[F + c] = math.cos(np.float64(angle)), math.sin(np.float64(angle))
        for h in range(heads):
            for c in range(F):
                turn(x, out, i, h * D + c, F, turns[c], turns[F + c])
            keep(x, out, i, h * D + 2 * F, h * D + D)


@simd.kernel(types.void(*ROWS, simd.MATRIX, *OUT), name="rope.table")
def table(x, positions, turns, heads, out):
    """As `naive`. turns: float32 (length, 2 F), cosines and then sines of each position."""
    F, D = turns.shape[1] // 2, x.shape[1] // heads
    for i in range(x.shape[0]):
        position = positions[i]
        for h in range(heads):
            for c in range(F):
                turn(x, out, i, h * D + c, F, turns[position, c], turns[position, F + c])
            keep(x, out, i, h * D + 2 * F, h * D + D)


def run(x: np.ndarray, positions: np.ndarray, rotation: Rotation, heads: int, out: np.ndarray, *, kernel: str) -> None:
    """One of the kernels above. x, out: float32 or bfloat16 (rows, heads * D)."""
    wide = x.astype(np.float32) if x.dtype == BFLOAT16 else x
    result = out if out.dtype == np.float32 else np.empty(out.shape, np.float32)
    if kernel == "naive":
        naive(wide, positions, rotation.frequencies, heads, result)
    elif kernel == "shared":
        turns = np.empty(2 * rotation.pairs, np.float32)
        shared(wide, positions, rotation.frequencies, turns, heads, result)
    else:
        table(wide, positions, rotation.table, heads, result)
    put_back(out, result)
