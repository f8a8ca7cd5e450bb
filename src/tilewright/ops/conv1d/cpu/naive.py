"""Five loops over samples, output channels, positions, input channels and taps.

out[b, o, l] = activation(bias[o] + sum over c, t of weight[o, c, t] * x[b, c, l * stride + t * dilation]), or its
maximum over l. The sum stays in a register. The limit is latency: each multiply-add waits for the one before, and loads
both operands.
"""

from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.conv1d.cpu.finish import ACTIVATIONS, INPUT_3D, OUTPUT_3D, POOLS, put
from tilewright.ops.conv1d.cpu.phases import phased
from tilewright.ops.conv1d.operands import Epilogue, Packed, Window


class Job(NamedTuple):
    """positions: of the output. activation, pool: entries of `ACTIVATIONS` and `POOLS`."""

    positions: int
    stride: int
    dilation: int
    activation: int
    pool: int


@simd.kernel(types.void(INPUT_3D, INPUT_3D, simd.INPUT, OUTPUT_3D, simd.record(Job)), name="conv1d.naive")
def loops(x, weight, bias, out, job):
    """x: (B, C, L) with its padding. weight: (O, C, K). bias: (O,) or empty. out: (B, O, positions or 1)."""
    O, C, K = weight.shape
    for b in range(x.shape[0]):
        for o in range(O):
            for l in range(job.positions):
                total = np.float32(0)
                for c in range(C):
                    for t in range(K):
                        total += weight[o, c, t] * x[b, c, l * job.stride + t * job.dilation]
                put(out, b, o, l, total, bias, job)


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, window: Window, epilogue: Epilogue) -> None:
    """x (B, C, L) convolved into out (B, O, positions), or (B, O, 1) with pooling."""
    flat, row = phased(x, window.padding, 1)
    options = ACTIVATIONS[epilogue.activation], POOLS[epilogue.pool]
    job = Job(window.positions(x.shape[2], weights.K), window.stride, window.dilation, *options)
    loops(flat.reshape(*x.shape[:2], row), weights.data, epilogue.bias, out, job)
