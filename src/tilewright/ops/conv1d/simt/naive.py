"""One thread per output, and the maximum over positions in a separate kernel.

out[b, o, l] = relu(bias[o] + sum over c, t of weight[o, c, t] * x[b, c, l * stride + t * dilation - padding]). The
limit is latency: each multiply-add waits for two loads.
"""

from numba import cuda, float32

from tilewright.ops.core.gpu.simt import inline, kernel

THREADS = 128


@inline
def finish(total, o, bias, relu):
    """total + bias[o], then ReLU if `relu`, which propagates NaN."""
    if bias.size:
        total += bias[o]
    return float32(0) if relu and total < 0 else total


@inline
def larger(best, total):
    """The larger of two values, or the NaN."""
    return best if total <= best or best != best else total


@kernel
def naive(x, weight, bias, out, stride, padding, dilation, relu):
    """One thread per output, a warp has adjacent positions, so its threads load from the same cache lines."""
    thread = cuda.grid(1)
    B, O, P = out.shape
    if thread >= B * O * P:
        return
    b, o, l = thread // (O * P), thread // P % O, thread % P
    total = float32(0)
    for c in range(weight.shape[1]):
        for t in range(weight.shape[2]):
            at = l * stride + t * dilation - padding
            if 0 <= at < x.shape[2]:
                total += weight[o, c, t] * x[b, c, at]
    out[b, o, l] = finish(total, o, bias, relu)


@kernel
def maximum(y, out):
    """out (B, O, 1) = the maximum of y (B, O, P) over positions, one thread per output."""
    thread = cuda.grid(1)
    B, O, P = y.shape
    if thread >= B * O:
        return
    b, o = thread // O, thread % O
    best = y[b, o, 0]
    for l in range(1, P):
        best = larger(best, y[b, o, l])
    out[b, o, 0] = best
