"""One matmul, without an im2col matrix: x lies channels last, where the K * C numbers under a window are contiguous.

Row l of the im2col matrix starts stride * C numbers after row l - 1, so the matrix is a view of x with overlapping
rows, and matmul packs them from there a cache block at a time. With a dilation, x is cut into as many phases, and a
window lies in one of them. Bias and activation are matmul's own; turning (positions, channels) round, or the maximum
over positions, is a pass afterwards.

It loses where C * K or O is small: x and out, each copied once, and matmul's packing cost more than they save.
"""

import numpy as np

from tilewright.ops.conv1d.cpu.turn import turn
from tilewright.ops.conv1d.operands import Epilogue, Packed, Window
from tilewright.ops.matmul import matmul, prepare


def pack_matrix(weight: np.ndarray, rung: str, dtype: str) -> Packed:
    """weight (O, C, K) as matmul's b (K * C, O): row t * C + c."""
    O, C, K = weight.shape
    taps_first = np.ascontiguousarray(weight.transpose(0, 2, 1)).reshape(O, K * C)
    return Packed(rung, O, C, K, dtype, prepare(taps_first.T, dtype=dtype))


def channels_last(x: np.ndarray, padding: int, phases: int) -> tuple[np.ndarray, int]:
    """(float32 (B * phases * row, C), row): x (B, C, L) between zeros, cut into phases as by `phases.phased`."""
    B, C, L = x.shape
    row = -(-(L + 2 * padding) // phases)
    if not padding and phases == 1 and x.swapaxes(1, 2).flags.c_contiguous:
        return x.swapaxes(1, 2).reshape(B * L, C), row
    last = np.empty((B, row * phases, C), np.float32)
    last[:, :padding] = 0
    turn(x, last[:, padding : padding + L])
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
        turn(y, out)
