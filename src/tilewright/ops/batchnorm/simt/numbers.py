"""A thread a number, and a thread four channels of a row; scale and shift of each channel come from a kernel before."""

import math
from functools import cache

import numpy as np
from numba import cuda, float32, float64

from tilewright.ops.core.gpu.registers import load4, store4
from tilewright.ops.core.gpu.simt import kernel, launch
from tilewright.ops.gemm.simt.epilogue import activation_for

THREADS = 256


@kernel
def fold(gamma, beta, mean, variance, scale, shift, eps):
    """A thread a channel: y = x * scale + shift, formed in float64."""
    c = cuda.grid(1)
    if c < gamma.size:
        factor = float64(gamma[c]) / math.sqrt(float64(variance[c]) + eps)
        scale[c] = float32(factor)
        shift[c] = float32(float64(beta[c]) - float64(mean[c]) * factor)


@cache
def naive(activation: str | None):
    """kernel(x, scale, shift, out), all but scale and shift (N,). The lowest rung: each thread divides to know its
    channel, and loads 4 bytes."""
    activate = activation_for(activation)

    @kernel
    def normalise(x, scale, shift, out):
        i = cuda.grid(1)
        if i < x.size:
            c = i % scale.size
            out[i] = activate(x[i] * scale[c] + shift[c])

    return normalise


@cache
def vectors(activation: str | None):
    """kernel(x, scale, shift, out). A thread loads and stores 16 bytes, and divides once for four channels, of which
    there is a multiple of four. Loses where there are few numbers."""
    activate = activation_for(activation)

    @kernel
    def normalise(x, scale, shift, out):
        i = 4 * cuda.grid(1)
        if i < x.size:
            at = i % scale.size
            a, b, c, d = load4(x, i)
            p, q, r, s = load4(scale, at)
            w, y, z, v = load4(shift, at)
            store4(out, i, (activate(a * p + w), activate(b * q + y), activate(c * r + z), activate(d * s + v)))

    return normalise


KERNELS = {"naive": (naive, 1), "vectors": (vectors, 4)}  # kernel for an activation, elements per thread


def run(x, channels, eps: float, activation, out, *, kernel: str) -> None:
    """out (rows, C) = activation(batchnorm of x); channels: gamma, beta, mean, variance. kernel: a key of KERNELS."""
    create, each = KERNELS[kernel]
    C = x.shape[1]
    scale, shift = x.new_empty(2, -(-C // 4) * 4)[:, :C]
    launch(fold, -(-C // THREADS), THREADS, (*channels, scale, shift), np.float64(eps))
    launch(create(activation), -(-x.numel() // (THREADS * each)), THREADS, (x.view(-1), scale, shift, out.view(-1)))
