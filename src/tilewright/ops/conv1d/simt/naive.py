"""A thread an output, and the maximum over positions as a kernel of its own."""

from numba import cuda, float32

from tilewright.ops.core.gpu.simt import inline, kernel

THREADS = 128


@inline
def finish(total, o, bias, relu):
    """total + bias, then ReLU, through which a NaN passes."""
    if bias.size:
        total += bias[o]
    return float32(0) if relu and total < 0 else total


@inline
def larger(best, total):
    """The larger, or the NaN."""
    return best if total <= best or best != best else total


@kernel
def naive(x, weight, bias, out, stride, padding, dilation, relu):
    """A thread has one output, a warp adjacent positions. Each multiply-add waits for two loads, whose lines the
    threads of a warp share; with 16 positions and a stride, half of a warp idles."""
    share = cuda.grid(1)
    B, O, P = out.shape
    if share >= B * O * P:
        return
    b, o, l = share // (O * P), share // P % O, share % P
    total = float32(0)
    for c in range(weight.shape[1]):
        for t in range(weight.shape[2]):
            at = l * stride + t * dilation - padding
            if 0 <= at < x.shape[2]:
                total += weight[o, c, t] * x[b, c, at]
    out[b, o, l] = finish(total, o, bias, relu)


@kernel
def maximum(y, out):
    """out (B, O, 1) = the largest of y (B, O, P), a thread an output."""
    share = cuda.grid(1)
    B, O, P = y.shape
    if share >= B * O:
        return
    b, o = share // O, share % O
    best = y[b, o, 0]
    for l in range(1, P):
        best = larger(best, y[b, o, l])
    out[b, o, 0] = best
