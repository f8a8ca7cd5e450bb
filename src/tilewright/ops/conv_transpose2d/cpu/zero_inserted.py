"""One matmul over an image with stride - 1 zeros between its pixels.

out = windows of the widened x (B * OH * OW, KH * KW * C) @ b (KH * KW * C, O), b the kernel with its taps reversed, as
for any convolution. Against `scatter` the sums are a matrix product, at its speed. It is slower than `phases` because
most multiplications are by the inserted zeros: three of four at stride 2.
"""

import numpy as np

from tilewright.ops.conv_transpose2d.cpu.window_rows import batches, between_zeros, windows
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.matmul import matmul, prepare


def pack_matrix(weights: np.ndarray, rows: Axis, columns: Axis, dtype: str):
    """weights (KH, KW, O, C) as matmul's b (KH * KW * C, O), taps in reverse."""
    return prepare(weights[::-1, ::-1].transpose(0, 1, 3, 2).reshape(-1, weights.shape[2]), dtype=dtype)


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    """out (B, OH, OW, O) = activation(bias + the transposed convolution of x (B, H, W, C))."""
    rows, columns, K = weights.rows, weights.columns, weights.data.K
    _, OH, OW, O = out.shape
    starts, step = (rows.K - 1 - rows.first, columns.K - 1 - columns.first), (rows.stride, columns.stride)
    bias = epilogue.bias if epilogue.bias.size else None
    for images in batches(len(x), 4 * OH * OW * K):
        canvas = between_zeros(x[images], starts, (OH + rows.K - 1, OW + columns.K - 1), step)
        matrix = windows(canvas, rows.K, columns.K).reshape(-1, K)
        y = matmul(matrix, weights.data, bias=bias, activation=epilogue.activation)
        out[images] = y.reshape(-1, OH, OW, O)
