"""One matmul per output phase: outputs one stride apart use the same taps (elements of the filter), and are an ordinary
convolution.

out[:, i::s, j::t] = windows of x (B * positions, taps * C) @ b (taps * C, O), for each phase (i, j) of the stride
(s, t); then bias and activation in two more passes over out.

Against `zero_inserted` there are no multiplications by inserted zeros. Writing the windows of every phase to memory
limits it, and so do the strided passes over out: the fused kernels of `taps` avoid both.
"""

import itertools

import numpy as np

from tilewright.ops.conv_transpose2d.cpu.window_rows import batches, between_zeros, windows
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.elementwise import gelu, relu, tanh
from tilewright.ops.matmul import matmul, prepare

ACTIVATIONS = {
    "relu": relu,
    "tanh": tanh,
    "gelu_tanh": gelu,
    "gelu": lambda x, out: gelu(x, approximate="none", out=out),
}


def pack_phases(weights: np.ndarray, rows: Axis, columns: Axis, dtype: str) -> list:
    """weights (KH, KW, O, C) as a matmul's b (taps * C, O) for each phase, phases of rows first."""
    O, parts = weights.shape[2], []
    for i, j in itertools.product(rows.phases, columns.phases):
        dense = weights[np.ix_([k for _, k in rows.taps(i)], [k for _, k in columns.taps(j)])]  # (UH, UW, O, C)
        parts.append(prepare(dense.transpose(0, 1, 3, 2).reshape(-1, O), dtype=dtype))
    return parts


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    """out (B, OH, OW, O) = activation(bias + the transposed convolution of x (B, H, W, C))."""
    rows, columns, C = weights.rows, weights.columns, weights.C
    out[...] = 0
    for (i, j), b in zip(itertools.product(rows.phases, columns.phases), weights.data, strict=True):
        target = out[:, i :: rows.stride, j :: columns.stride]
        (down, UH), (across, UW) = _first(rows, i), _first(columns, j)
        _, H, W, O = target.shape
        for images in batches(len(x) if target.size else 0, 4 * H * W * b.K):
            canvas = between_zeros(x[images], (-down, -across), (H + UH - 1, W + UW - 1), (1, 1))
            matrix = windows(canvas, UH, UW).reshape(-1, UH * UW * C)
            target[images] = matmul(matrix, b).reshape(-1, H, W, O)
    if epilogue.bias.size:
        out += epilogue.bias
    if epilogue.activation:
        ACTIVATIONS[epilogue.activation](out, out=out)


def _first(axis: Axis, phase: int) -> tuple[int, int]:
    """(smallest d, number of taps) of a phase."""
    taps = axis.taps(phase)
    return taps[0][0], len(taps)
