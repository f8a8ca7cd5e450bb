"""Kernels of the phases, and Winograd's F(2, 3) along both axes: what it multiplies, and how large its terms are.

Two neighbouring positions along an axis read four inputs d of x through a window of three taps (elements of the filter)
g:

    y[0] = d0 g0 + d1 g1 + d2 g2        m0 = (d0 - d2) g0                       y[0] = m0 + m1 + m2
    y[1] = d1 g0 + d2 g1 + d3 g2        m1 = (d1 + d2) (g0 + g1 + g2) / 2       y[1] = m1 - m2 - m3
                                        m2 = (d2 - d1) (g0 - g1 + g2) / 2
                                        m3 = (d1 - d3) g2

Four products replace six. All phases read the same d, so its sums are formed once for all of them. A phase whose first
or last tap is missing needs no m0 or m3: three products replace four. With five taps at stride 2 a tile of 2 x 2
positions takes 49 products per pair of channels, the phases take 100. Sources: Winograd, "Arithmetic Complexity of
Computations", 1980; Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from tilewright.ops.conv_transpose2d.operands import Axis

SIDE, TAPS, PRODUCTS = 2, 3, 4  # positions of a tile along an axis, taps of the window, products
B = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], np.float64)  # d -> its sums
G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])  # taps -> factors
A = np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float64)  # products -> positions


def products_of(axis: Axis, phase: int) -> tuple[int, ...]:
    """The products that a phase needs: their factor is not always zero."""
    least = axis.window[0]
    present = {d - least for d, _ in axis.taps(phase)}
    return tuple(p for p in range(PRODUCTS) if any(G[p, t] for t in present))


def taps_of(axis: Axis, phase: int, window: int = TAPS) -> np.ndarray:
    """int (window,): the index in the kernel of each tap of the window, -1 where this phase has none."""
    index = np.full(window, -1)
    for d, k in axis.taps(phase):
        index[d - axis.window[0]] = k
    return index


def dense_kernel(weights: np.ndarray, down: np.ndarray, across: np.ndarray) -> np.ndarray:
    """(len(down), len(across), O, C): weights at those indices of their first two axes, zeros where one is -1."""
    inside = (down >= 0)[:, None] & (across >= 0)
    return weights[down[:, None], across] * inside[:, :, None, None]


def phase_kernels(weights: np.ndarray, rows: Axis, columns: Axis) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each phase its kernel (down, across, O, C) over the whole window, with zeros where it lacks a tap, and bool
    (down, across): the taps that it has."""
    for i, j in itertools.product(rows.phases, columns.phases):
        down, across = taps_of(rows, i, rows.window[1]), taps_of(columns, j, columns.window[1])
        yield dense_kernel(weights, down, across), (down >= 0)[:, None] & (across >= 0)


def factors(weights: np.ndarray, rows: Axis, columns: Axis) -> dict[tuple[int, int], np.ndarray]:
    """float64 (4, 4, O, C) for each phase (i, j): the factors of the tiles' sums."""
    weights = weights.astype(np.float64)
    found = {}
    for i, j in itertools.product(rows.phases, columns.phases):
        kernel = dense_kernel(weights, taps_of(rows, i), taps_of(columns, j))
        found[i, j] = np.einsum("pt,qs,tsoc->pqoc", G, G, kernel)
    return found


def term_sizes(x: np.ndarray, weights: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
    """float64 (B, OH, OW, O): absolute values of the algorithm's terms, |A| ((|B| |d| |B|) (|G| |g| |G|)) |A|."""
    n, H, W, _ = x.shape
    down, across = -(-rows.positions(H) // SIDE), -(-columns.positions(W) // SIDE)
    padded = np.zeros((n, SIDE * down + 2, SIDE * across + 2, x.shape[3]))
    for h, w in np.ndindex(*padded.shape[1:3]):
        row, column = h + rows.window[0], w + columns.window[0]
        if 0 <= row < H and 0 <= column < W:
            padded[:, h, w] = np.abs(x[:, row, column].astype(np.float64))
    tiles = np.lib.stride_tricks.sliding_window_view(padded, (4, 4), axis=(1, 2))[:, ::SIDE, ::SIDE]
    sums = np.einsum("pa,qb,nijcab->nijpqc", np.abs(B), np.abs(B), tiles)
    out = np.zeros((n, SIDE * down * rows.stride, SIDE * across * columns.stride, weights.shape[2]))
    whole = out.reshape(n, down, SIDE, rows.stride, across, SIDE, columns.stride, weights.shape[2])
    for i, j in itertools.product(rows.phases, columns.phases):
        kernel = np.abs(dense_kernel(weights.astype(np.float64), taps_of(rows, i), taps_of(columns, j)))
        sizes = np.einsum("nijpqc,pt,qs,tsoc->nijpqo", sums, np.abs(G), np.abs(G), kernel, optimize=True)
        whole[:, :, :, i, :, :, j] = np.einsum("up,vq,nijpqo->niujvo", np.abs(A), np.abs(A), sizes, optimize=True)
    return out[:, : rows.size(H), : columns.size(W)]
