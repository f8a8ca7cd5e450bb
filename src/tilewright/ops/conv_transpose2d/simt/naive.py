"""One thread per output: with a test in its loop, without it, and with weights that neighbouring threads read together.

out[b, r, q, o] = activation(bias[o] + sum over taps (a, c) and channels i of x[b, h, w, i] * weights[a, c, o, i]), for
the inputs (h, w) with h * sh + a = r + top and w * sw + c = q + left. Each multiply-add loads two elements, so the
caches limit all three kernels. Parameters of each: x (B, H, W, C), weights (KH, KW, O, C), bias (O,) or empty,
out (B, OH, OW, O), all float32 and contiguous; sh, sw: stride down and across; top, left: rows and columns cropped off
before the first output.
"""

from functools import cache, partial

from numba import cuda, float32

from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.core.gpu.simt import inline, kernel, launch
from tilewright.ops.gemm.simt.epilogue import activation_for

THREADS = 256


@inline
def output_of(at, out):
    """(image, row, column, channel) of element `at` of out."""
    O, OW, OH = out.shape[3], out.shape[2], out.shape[1]
    row = at // O // OW
    return row // OH, row % OH, at // O % OW, at % O


@cache
def gather_tested(activation: str | None):
    """The lowest rung: each output visits all taps and tests which of them have an input.

    At stride 2 three of four have none, and the threads of a warp wait for each other.
    """
    activate = activation_for(activation)

    @kernel
    def convolve(x, weights, bias, out, sh, sw, top, left):
        at = cuda.grid(1)
        if at < out.size:
            b, r, q, o = output_of(at, out)
            total = float32(0)
            for a in range(weights.shape[0]):
                for c in range(weights.shape[1]):
                    h, w = r + top - a, q + left - c
                    if h >= 0 and w >= 0 and h % sh == 0 and w % sw == 0:
                        h, w = h // sh, w // sw
                        if h < x.shape[1] and w < x.shape[2]:
                            for i in range(weights.shape[3]):
                                total += x[b, h, w, i] * weights[a, c, o, i]
            if bias.size:
                total += bias[o]
            out[b, r, q, o] = activate(total)

    return convolve


@cache
def gather(activation: str | None, transposed: bool = False):
    """No test: the first and the last input of an output are known before the loop, and its taps are one stride apart.

    transposed: weights are (KH, KW, C, O), so that the threads of a warp, neighbours in O, read adjacent elements. It
    is slow if O is small.
    """
    activate = activation_for(activation)

    @kernel
    def convolve(x, weights, bias, out, sh, sw, top, left):
        at = cuda.grid(1)
        if at < out.size:
            b, r, q, o = output_of(at, out)
            KH, KW = weights.shape[0], weights.shape[1]
            h0, h1 = max(0, (r + top - KH + sh) // sh), min(x.shape[1] - 1, (r + top) // sh)
            w0, w1 = max(0, (q + left - KW + sw) // sw), min(x.shape[2] - 1, (q + left) // sw)
            total = float32(0)
            for h in range(h0, h1 + 1):
                a = r + top - h * sh
                for w in range(w0, w1 + 1):
                    c = q + left - w * sw
                    for i in range(x.shape[3]):
                        total += x[b, h, w, i] * (weights[a, c, i, o] if transposed else weights[a, c, o, i])
            if bias.size:
                total += bias[o]
            out[b, r, q, o] = activate(total)

    return convolve


KERNELS = {"gather_tested": gather_tested, "gather": gather, "coalesced": partial(gather, transposed=True)}


def transpose(weights, rows: Axis, columns: Axis, dtype: str):
    """weights (KH, KW, O, C) as float32 (KH, KW, C, O)."""
    return weights.float().permute(0, 1, 3, 2).contiguous()


def convolve(x, weights: Packed, out, epilogue: Epilogue, *, kernel: str) -> None:
    """out (B, OH, OW, O) from x (B, H, W, C), contiguous float32 tensors on one device. kernel: a key of KERNELS."""
    tensors = (x, weights.data, epilogue.bias.float(), out)
    window = weights.rows.stride, weights.columns.stride, weights.rows.first, weights.columns.first
    launch(KERNELS[kernel](epilogue.activation), -(-out.numel() // THREADS), THREADS, tensors, *window)
