"""The definition as loops over scalars: every input adds its kernel to the outputs around it.

full[b, s * h + a, t * w + c, o] += sum over i of x[b, h, w, i] * weights[a, c, o, i], cropped, then bias and
activation; x (B, H, W, C), weights (KH, KW, O, C), out (B, OH, OW, O). It computes one multiply-add at a time, and
reads and writes out for each tap (one element of the filter). This limits it to about 5 GFLOP/s, on one thread.
"""

from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.conv_transpose2d.operands import Epilogue, Packed
from tilewright.ops.gemm.cpu.epilogue import ACTIVATIONS, activate_number

INPUT_4D = types.Array(types.float32, 4, "A", readonly=True)
OUTPUT_4D = types.Array(types.float32, 4, "A")


class Window(NamedTuple):
    """sh, sw: stride down and across. top, left: rows and columns cropped off before the first output."""

    sh: int
    sw: int
    top: int
    left: int


SIGNATURE = types.void(INPUT_4D, INPUT_4D, simd.INPUT, OUTPUT_4D, simd.record(Window), types.int64)


@simd.kernel(SIGNATURE, name="conv_transpose2d.scatter")
def scatter(x, weights, bias, out, window, activation):
    """bias: (O,) or empty. activation: a value of ACTIVATIONS. The other arrays are those of the module's formula."""
    sh, sw, top, left = window.sh, window.sw, window.top, window.left
    KH, KW, O, C = weights.shape
    out[:] = 0
    for b in range(x.shape[0]):
        for h in range(x.shape[1]):
            for w in range(x.shape[2]):
                for a in range(max(0, top - h * sh), min(KH, out.shape[1] + top - h * sh)):
                    for c in range(max(0, left - w * sw), min(KW, out.shape[2] + left - w * sw)):
                        for o in range(O):
                            total = np.float32(0)
                            for i in range(C):
                                total += x[b, h, w, i] * weights[a, c, o, i]
                            out[b, h * sh + a - top, w * sw + c - left, o] += total
    for b in range(out.shape[0]):
        for r in range(out.shape[1]):
            for q in range(out.shape[2]):
                for o in range(O):
                    total = out[b, r, q, o] + bias[o] if bias.size else out[b, r, q, o]
                    out[b, r, q, o] = activate_number(total, activation)


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    """out (B, OH, OW, O) from x (B, H, W, C), on one thread."""
    rows, columns = weights.rows, weights.columns
    window = Window(rows.stride, columns.stride, rows.first, columns.first)
    scatter(x, weights.data, epilogue.bias, out, window, ACTIVATIONS[epilogue.activation])
