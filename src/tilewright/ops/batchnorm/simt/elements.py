"""batchnorm in numba-cuda: out[i, c] = activation(x[i, c] * scale[c] + shift[c]).

x and out: float32 (rows, C), contiguous; out may be x. A first kernel computes scale and shift (C,) from gamma, beta,
mean and variance. Memory bandwidth is the limit: 8 bytes per element.
"""

import math
from functools import cache

import numpy as np
from numba import cuda, float32, float64

from tilewright.ops.core.gpu.limits import check_threads
from tilewright.ops.core.gpu.registers import load4, store4
from tilewright.ops.core.gpu.simt import kernel, launch
from tilewright.ops.gemm.simt.epilogue import activation_for

THREADS = 256  # per block of `fold`


@kernel
def fold(gamma, beta, mean, variance, scale, shift, eps):
    """One thread per channel: the scale and the shift, computed in float64. All but eps are float32 (C,)."""
    c = cuda.grid(1)
    if c < gamma.size:
        factor = float64(gamma[c]) / math.sqrt(float64(variance[c]) + eps)
        scale[c] = float32(factor)
        shift[c] = float32(float64(beta[c]) - float64(mean[c]) * factor)


@cache
def naive(activation: str | None):
    """kernel(x, scale, shift, out), x and out (rows * C,), one thread per element. It is the lowest rung.

    Each thread takes a remainder to find its channel, and loads 4 bytes.
    """
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
    """kernel(x, scale, shift, out), x and out (rows * C,), one thread per four channels. C is a multiple of four, and
    x and out begin at a multiple of 16 bytes.

    A thread loads and stores 16 bytes, with one remainder. It is slower than `naive` on few elements: fewer threads
    run.
    """
    activate = activation_for(activation)

    @kernel
    def normalise(x, scale, shift, out):
        i = 4 * cuda.grid(1)
        if i < x.size:
            channel = i % scale.size
            a, b, c, d = load4(x, i)
            p, q, r, s = load4(scale, channel)
            w, y, z, v = load4(shift, channel)
            store4(out, i, (activate(a * p + w), activate(b * q + y), activate(c * r + z), activate(d * s + v)))

    return normalise


KERNELS = {"naive": (naive, 1), "vectors": (vectors, 4)}  # kernel for an activation, elements per thread


def run(x, channels, eps: float, activation, out, *, kernel: str, block: int) -> None:
    """out = activation(batchnorm of x), tensors (rows, C). channels: gamma, beta, mean, variance, each (C,). kernel: a
    key of KERNELS. block: its threads per block, which change no bit. Raises Refused for a block that no GPU has."""
    check_threads(block)
    kernel_for, each = KERNELS[kernel]
    C = x.shape[1]
    scale, shift = x.new_empty(2, -(-C // 4) * 4)[:, :C]  # rows of whole 16 bytes
    launch(fold, -(-C // THREADS), THREADS, (*channels, scale, shift), np.float64(eps))
    launch(kernel_for(activation), -(-x.numel() // (block * each)), block, (x.view(-1), scale, shift, out.view(-1)))
