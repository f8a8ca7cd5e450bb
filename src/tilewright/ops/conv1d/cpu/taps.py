"""One vector holds the taps (elements of the filter) of one channel. It is multiplied by a vector of x, and the
products are added over channels. At the end the lanes are added once.

out[b, o, l] = activation(bias[o] + sum over c, t of weight[o, c, t] * x[b, c, l * stride + t * dilation]), or its
maximum over l. `naive` waits for an addition per tap, this for one per channel. The limit is loads, since x is loaded
again for each output channel. It is slow where K is not a multiple of the vector: with 3 taps 3 of 16 lanes work.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv1d.cpu.finish import ACTIVATIONS, OUTPUT_3D, POOLS, put
from tilewright.ops.conv1d.cpu.phases import phased
from tilewright.ops.conv1d.operands import Epilogue, Packed, Window


class Taps(NamedTuple):
    """O output channels, C input channels, K taps. row: elements in one phase of a channel of x, see `phased`.
    activation, pool: entries of `ACTIVATIONS` and `POOLS`."""

    O: int
    C: int
    K: int
    positions: int
    stride: int
    dilation: int
    row: int
    activation: int
    pool: int


@functools.cache
def tap_kernel(lanes: int):
    """The kernel for vectors of `lanes` float32."""

    @simd.inline
    def dot(x, at, channel, weight, w_at, C, K):
        """Sum over channels and taps, from `at` in the first channel of x; a channel has `channel` elements."""
        total = simd.zeros(lanes)
        for _ in range(C):
            for t in range(0, K, lanes):
                w = simd.load_first(weight, w_at + t, K - t, lanes)
                total = simd.fma(w, simd.load_first(x, at + t, K - t, lanes), total)
            at += channel
            w_at += K
        return simd.reduce_add(total)

    @simd.kernel(
        types.void(simd.INPUT, simd.INPUT, simd.INPUT, OUTPUT_3D, simd.record(Taps)), name=f"conv1d.taps.{lanes}"
    )
    def taps(x, weight, bias, out, job):
        """x: flat (B, C, dilation, row). weight: flat (O, C, K). bias: (O,) or empty. out: (B, O, positions or 1)."""
        C, K, channel = job.C, job.K, job.dilation * job.row
        for b in range(out.shape[0]):
            for o in range(job.O):
                for l in range(job.positions):
                    first = l * job.stride
                    at = b * C * channel + first % job.dilation * job.row + first // job.dilation
                    put(out, b, o, l, dot(x, at, channel, weight, o * C * K, C, K), bias, job)

    return taps


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, window: Window, epilogue: Epilogue) -> None:
    """x (B, C, L) convolved into out (B, O, positions), or (B, O, 1) with pooling."""
    flat, row = phased(x, window.padding, window.dilation)
    O, C, K = weights.data.shape
    options = ACTIVATIONS[epilogue.activation], POOLS[epilogue.pool]
    job = Taps(O, C, K, window.positions(x.shape[2], K), window.stride, window.dilation, row, *options)
    tap_kernel(cpu().lanes)(flat, np.ascontiguousarray(weights.data).reshape(-1), epilogue.bias, out, job)
