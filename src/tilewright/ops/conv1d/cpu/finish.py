"""The epilogue of the scalar rungs: bias, activation and pooling; and the array types of all rungs."""

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.gemm.cpu.epilogue import ACTIVATIONS, RELU

__all__ = ["ACTIVATIONS", "INPUT_3D", "OUTPUT_3D", "POOLS", "RELU", "put"]

POOLS = {None: 0, "max": 1}
INPUT_3D = types.Array(types.float32, 3, "A", readonly=True)
OUTPUT_3D = types.Array(types.float32, 3, "A")


@simd.inline
def put(out, b, o, l, total, bias, job):
    """out[b, o, l] = activation(total + bias[o]); with pooling out[b, o, 0] = max(out[b, o, 0], that).

    job: a record with the fields activation and pool, entries of `ACTIVATIONS` and `POOLS`.
    """
    if bias.size:
        total += bias[o]
    if job.activation == RELU and total < 0:  # a NaN compares false, so it stays
        total = np.float32(0)
    if not job.pool:
        out[b, o, l] = total
    elif l == 0 or total > out[b, o, 0] or total != total:  # a NaN is stored, and nothing is greater
        out[b, o, 0] = total
