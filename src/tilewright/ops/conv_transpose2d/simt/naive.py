"""A thread an output: with a test in its loop, without it, and with weights that neighbours read side by side.

Letters: x (B, H, W, C), weights (KH, KW, O, C), out (B, OH, OW, O); (a, c) is a tap. window: stride down and across,
rows and columns cropped off before.
"""

from functools import cache

from numba import cuda, float32

from tilewright.ops.core.gpu.simt import inline, kernel
from tilewright.ops.gemm.simt.epilogue import activation_for

THREADS = 256


@inline
def place(at, out):
    """(image, row, column, channel) of the element number `at` of out."""
    O, OW, OH = out.shape[3], out.shape[2], out.shape[1]
    row = at // O // OW
    return row // OH, row % OH, at // O % OW, at % O


@cache
def gather_tested(activation: str | None):
    """kernel(x, weights, bias, out, sh, sw, top, left). Every output visits all taps and asks at each of them whether
    an input lies there: at stride 2 three of four do not, and threads of a warp wait for those that do.

    The lowest rung.
    """
    activate = activation_for(activation)

    @kernel
    def convolve(x, weights, bias, out, sh, sw, top, left):
        at = cuda.grid(1)
        if at < out.size:
            b, r, q, o = place(at, out)
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
def gather(activation: str | None):
    """kernel(x, weights, bias, out, sh, sw, top, left). The first input that reaches an output and the last are known
    before the loop, and taps are a stride apart: no test is left.

    Loses where a kernel is no larger than the stride, and one tap is all there is.
    """
    return _gather(activation, False)


@cache
def coalesced(activation: str | None):
    """The same with weights (KH, KW, C, O): a warp's threads, neighbours in O, read adjacent numbers.

    Loses where O is a few channels.
    """
    return _gather(activation, True)


def _gather(activation: str | None, turned: bool):
    activate = activation_for(activation)

    @kernel
    def convolve(x, weights, bias, out, sh, sw, top, left):
        at = cuda.grid(1)
        if at < out.size:
            b, r, q, o = place(at, out)
            KH, KW = weights.shape[0], weights.shape[1]
            h0, h1 = max(0, (r + top - KH + sh) // sh), min(x.shape[1] - 1, (r + top) // sh)
            w0, w1 = max(0, (q + left - KW + sw) // sw), min(x.shape[2] - 1, (q + left) // sw)
            total = float32(0)
            for h in range(h0, h1 + 1):
                a = r + top - h * sh
                for w in range(w0, w1 + 1):
                    c = q + left - w * sw
                    for i in range(x.shape[3]):
                        total += x[b, h, w, i] * (weights[a, c, i, o] if turned else weights[a, c, o, i])
            if bias.size:
                total += bias[o]
            out[b, r, q, o] = activate(total)

    return convolve
