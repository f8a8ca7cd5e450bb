"""One matmul: x with stride - 1 zeros between its pixels, convolved as any image is, by the kernel turned round.

Against `gather`: the sums are a matrix product, at its speed. It loses to the phases because most of its
multiplications are by the zeros: at stride 2 three of four.
"""

import numpy as np

from tilewright.ops.conv_transpose2d.cpu.rows_matrix import between_zeros, some_images, windows
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.matmul import matmul, prepare


def pack_matrix(weights: np.ndarray, rows: Axis, columns: Axis, rung: str, dtype: str) -> Packed:
    """weights (KH, KW, O, C) as matmul's b (KH * KW * C, O), taps in reverse."""
    KH, KW, O, C = weights.shape
    turned = weights[::-1, ::-1].transpose(0, 1, 3, 2).reshape(KH * KW * C, O)
    return Packed(rung, O, C, rows, columns, dtype, prepare(turned, dtype=dtype))


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    """out (B, OH, OW, O) = activation(bias + the transposed convolution of x (B, H, W, C))."""
    rows, columns, K = weights.rows, weights.columns, weights.data.K
    _, OH, OW, O = out.shape
    starts, step = (rows.K - 1 - rows.first, columns.K - 1 - columns.first), (rows.stride, columns.stride)
    bias = epilogue.bias if epilogue.bias.size else None
    for images in some_images(len(x), 4 * OH * OW * K):
        canvas = between_zeros(x[images], starts, (OH + rows.K - 1, OW + columns.K - 1), step)
        matrix = windows(canvas, rows.K, columns.K).reshape(-1, K)
        y = matmul(matrix, weights.data, bias=bias, activation=epilogue.activation)
        out[images] = y.reshape(-1, OH, OW, O)
