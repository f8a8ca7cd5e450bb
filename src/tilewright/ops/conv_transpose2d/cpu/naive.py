"""Scalar rungs: inputs that scatter their kernels, and outputs that gather theirs.

Letters: x (B, H, W, C), weights (KH, KW, O, C), out (B, OH, OW, O); (a, c) is a tap. Both end in bias and activation.
"""

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.conv_transpose2d.operands import Epilogue, Packed
from tilewright.ops.gemm.cpu.epilogue import ACTIVATIONS, activate_number

INPUT_4D = types.Array(types.float32, 4, "A", readonly=True)
OUTPUT_4D = types.Array(types.float32, 4, "A")
SIGNATURE = types.void(INPUT_4D, INPUT_4D, simd.INPUT, OUTPUT_4D, types.UniTuple(types.int64, 4), types.int64)


@simd.inline
def finish(total, o, bias, activation):
    """activation(total + bias[o]); an empty bias counts as none."""
    if bias.size:
        total += bias[o]
    return activate_number(total, activation)


@simd.kernel(SIGNATURE, name="conv_transpose2d.scatter")
def scatter(x, weights, bias, out, window, activation):
    """Every input adds its kernel to the outputs around it: out is read and written for each tap. window: stride down
    and across, rows and columns cropped off before."""
    sh, sw, top, left = window
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
                    out[b, r, q, o] = finish(out[b, r, q, o], o, bias, activation)


@simd.kernel(SIGNATURE, name="conv_transpose2d.gather")
def gather(x, weights, bias, out, window, activation):
    """Every output sums the inputs that reach it, at taps one stride apart. Inputs and taps run in opposite directions:
    h * stride + a is the output's row."""
    sh, sw, top, left = window
    KH, KW, O, C = weights.shape
    for b in range(out.shape[0]):
        for r in range(out.shape[1]):
            h0, h1 = max(0, (r + top - KH + sh) // sh), min(x.shape[1] - 1, (r + top) // sh)
            for q in range(out.shape[2]):
                w0, w1 = max(0, (q + left - KW + sw) // sw), min(x.shape[2] - 1, (q + left) // sw)
                for o in range(O):
                    total = np.float32(0)
                    for h in range(h0, h1 + 1):
                        a = r + top - h * sh
                        for w in range(w0, w1 + 1):
                            c = q + left - w * sw
                            for i in range(C):
                                total += x[b, h, w, i] * weights[a, c, o, i]
                    out[b, r, q, o] = finish(total, o, bias, activation)


KERNELS = {"scatter": scatter, "gather": gather}


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, epilogue: Epilogue, *, kernel: str) -> None:
    """out (B, OH, OW, O) from x (B, H, W, C) by `KERNELS[kernel]`, on one thread."""
    window = weights.rows.stride, weights.columns.stride, weights.rows.first, weights.columns.first
    KERNELS[kernel](x, weights.data, epilogue.bias, out, window, ACTIVATIONS[epilogue.activation])
