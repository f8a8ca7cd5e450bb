"""The end of the scalar rungs: bias, activation and pooling; and what all rungs call them."""

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.gemm.cpu.epilogue import ACTIVATIONS, RELU

__all__ = ["ACTIVATIONS", "INPUT_3D", "OUTPUT_3D", "POOLS", "RELU", "put"]

POOLS = {None: 0, "max": 1}
INPUT_3D = types.Array(types.float32, 3, "A", readonly=True)
OUTPUT_3D = types.Array(types.float32, 3, "A")


@simd.inline
def put(out, b, o, l, total, bias, options):
    """out[b, o, l] = activation(total + bias[o]); with pooling out[b, o, 0] becomes the larger of it and that.

    options: (activation, pool).
    """
    activation, pool = options
    if bias.size:
        total += bias[o]
    if activation == RELU and total < 0:  # a NaN compares false, and stays
        total = np.float32(0)
    if not pool:
        out[b, o, l] = total
    elif l == 0 or total > out[b, o, 0] or total != total:  # a NaN wins; after that nothing is greater
        out[b, o, 0] = total
