"""Five loops over samples, output channels, positions, input channels, taps; a sum stays in a register all along."""

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.conv1d.cpu.finish import ACTIVATIONS, INPUT_3D, OUTPUT_3D, POOLS, put
from tilewright.ops.conv1d.cpu.phases import phased
from tilewright.ops.conv1d.operands import Epilogue, Packed, Window

OPTIONS = types.UniTuple(types.int64, 2)


@simd.kernel(
    types.void(INPUT_3D, INPUT_3D, simd.INPUT, OUTPUT_3D, types.int64, types.int64, types.int64, OPTIONS),
    name="conv1d.naive",
)
def loops(x, weight, bias, out, positions, stride, dilation, options):
    """x (B, C, L) with its zeros.

    A product costs a load of x and one of weight, and waits for the addition before it.
    """
    O, C, K = weight.shape
    for b in range(x.shape[0]):
        for o in range(O):
            for l in range(positions):
                total = np.float32(0)
                for c in range(C):
                    for t in range(K):
                        total += weight[o, c, t] * x[b, c, l * stride + t * dilation]
                put(out, b, o, l, total, bias, options)


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, window: Window, epilogue: Epilogue) -> None:
    """x (B, C, L) convolved into out (B, O, positions), or (B, O, 1) with pooling."""
    flat, row = phased(x, window.padding, 1)
    options = ACTIVATIONS[epilogue.activation], POOLS[epilogue.pool]
    positions = window.positions(x.shape[2], weights.K)
    padded = flat.reshape(*x.shape[:2], row)
    loops(padded, weights.data, epilogue.bias, out, positions, window.stride, window.dilation, options)
