"""batchnorm, one element after the other: out[i, c] = activation(x[i, c] * scale[c] + shift[c]).

One thread, limited by its scalar loads and stores, far below memory bandwidth. The caller folds gamma, beta, mean and
variance into scale and shift.
"""

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.gemm.cpu.epilogue import ACTIVATIONS, activate_number


@simd.kernel(types.void(simd.INPUT_2D, simd.INPUT, simd.INPUT, types.int64, simd.OUTPUT_2D), name="batchnorm.naive")
def scale_shift(x, scale, shift, activation, out):
    """x, out: float32 (rows, C); scale, shift: float32 (C,). activation: a value of `ACTIVATIONS`."""
    for i in range(x.shape[0]):
        for c in range(x.shape[1]):
            out[i, c] = activate_number(x[i, c] * scale[c] + shift[c], activation)


def normalise(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, activation: str | None, out: np.ndarray) -> None:
    """out = activation(x * scale + shift): x, out float32 (rows, C); scale, shift (C,)."""
    scale_shift(x, scale, shift, ACTIVATIONS[activation], out)
