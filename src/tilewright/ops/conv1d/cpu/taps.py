"""The taps of one channel as a vector: times as many numbers of x at once, added up over channels, reduced once.

Where `naive` waits for an addition a tap, this waits for one a channel. It loses to wider ideas where K is no multiple
of the vector: of 16 lanes a kernel of 3 taps uses 3. And it loads every number of x again for each output channel.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv1d.cpu.finish import ACTIVATIONS, OUTPUT_3D, POOLS, put
from tilewright.ops.conv1d.cpu.phases import phased
from tilewright.ops.conv1d.operands import Epilogue, Packed, Window


@functools.cache
def tap_kernel(lanes: int):
    """The kernel for a vector width."""

    @simd.inline
    def dot(x, at, channel, weight, w_at, C, K):
        """Sum over channels and taps, from `at` in the first channel of x; channels are `channel` apart."""
        total = simd.zeros(lanes)
        for _ in range(C):
            for t in range(0, K, lanes):
                w = simd.load_first(weight, w_at + t, K - t, lanes)
                total = simd.fma(w, simd.load_first(x, at + t, K - t, lanes), total)
            at += channel
            w_at += K
        return simd.reduce_add(total)

    @simd.kernel(types.void(simd.INPUT, simd.INPUT, simd.INPUT, OUTPUT_3D, simd.INDICES), name=f"conv1d.taps.{lanes}")
    def taps(x, weight, bias, out, plan):
        """x (B, C, dilation, row). plan: O, C, K, positions, stride, dilation, row, activation, pool."""
        O, C, K, positions, stride, dilation, row = plan[0], plan[1], plan[2], plan[3], plan[4], plan[5], plan[6]
        channel, options = dilation * row, (plan[7], plan[8])
        for b in range(out.shape[0]):
            for o in range(O):
                for l in range(positions):
                    first = l * stride
                    at = b * C * channel + first % dilation * row + first // dilation
                    put(out, b, o, l, dot(x, at, channel, weight, o * C * K, C, K), bias, options)

    return taps


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, window: Window, epilogue: Epilogue) -> None:
    """The rung's run function."""
    flat, row = phased(x, window.padding, window.dilation)
    O, C, K = weights.data.shape
    options = ACTIVATIONS[epilogue.activation], POOLS[epilogue.pool]
    plan = np.array([O, C, K, window.positions(x.shape[2], K), window.stride, window.dilation, row, *options], np.int64)
    tap_kernel(cpu().lanes)(flat, np.ascontiguousarray(weights.data).reshape(-1), epilogue.bias, out, plan)
