"""One matmul without an im2col matrix: x is stored channels last, where a window's K * C elements are contiguous.

y[b * positions + l] = windows[row of (b, l)] @ b, where b (K * C, O) is the weight. Row l of the im2col matrix starts
stride * C elements after row l - 1, so the matrix is a view of x with overlapping rows, and matmul packs blocks of it.
With a dilation x is cut into as many phases, and a window is inside one of them. Matmul applies bias and activation; a
second pass transposes the result or takes the maximum over positions.

The limit is matmul's multiply-add rate. It is slow where C * K or O is small: copying x and out, and packing, cost
more.
"""

import numpy as np

from tilewright.ops.conv1d.cpu.transpose import transpose
from tilewright.ops.conv1d.operands import Epilogue, Packed, Window
from tilewright.ops.matmul import matmul, prepare


def pack_matrix(weight: np.ndarray, rung: str, dtype: str) -> Packed:
    """weight (O, C, K) as matmul's b (K * C, O); row t * C + c is tap t of channel c."""
    O, C, K = weight.shape
    taps_first = np.ascontiguousarray(weight.transpose(0, 2, 1)).reshape(O, K * C)
    return Packed(rung, O, C, K, dtype, prepare(taps_first.T, dtype=dtype))


def channels_last(x: np.ndarray, padding: int, phases: int) -> tuple[np.ndarray, int]:
    """(float32 (B * phases * row, C), row): x (B, C, L) with padding, cut into phases as by `phases.phased`."""
    B, C, L = x.shape
    row = -(-(L + 2 * padding) // phases)
    if not padding and phases == 1 and x.swapaxes(1, 2).flags.c_contiguous:
        return x.swapaxes(1, 2).reshape(B * L, C), row
    last = np.empty((B, row * phases, C), np.float32)
    last[:, :padding] = 0
    transpose(x, last[:, padding : padding + L])
    last[:, padding + L :] = 0
    if phases > 1:
        last = np.ascontiguousarray(last.reshape(B, row, phases, C).swapaxes(1, 2))
    return last.reshape(B * phases * row, C), row


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, window: Window, epilogue: Epilogue) -> None:
    """x (B, C, L) convolved into out (B, O, positions), or (B, O, 1) with pooling."""
    B, O, C, K = len(x), weights.O, weights.C, weights.K
    flat, row = channels_last(x, window.padding, window.dilation)
    first = np.arange(window.positions(x.shape[2], K)) * window.stride  # padded position of each window's first tap
    starts = first % window.dilation * row + first // window.dilation
    index = np.arange(B)[:, None] * (window.dilation * row) + starts  # (B, positions)
    windows = np.lib.stride_tricks.as_strided(flat, (len(flat) - K + 1, K * C), (4 * C, 4), writeable=False)
    bias = epilogue.bias if epilogue.bias.size else None
    y = matmul(windows, weights.data, rows=index.reshape(-1), bias=bias, activation=epilogue.activation)
    y = y.reshape(*index.shape, O)  # (B, positions, O)
    if epilogue.pool:
        np.max(y, axis=1, out=out[:, :, 0])
    else:
        transpose(y, out)
