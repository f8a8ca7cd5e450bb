"""The end of every CPU rung: residual, bias and activation, so that a fused and an unfused rung compute the same
function."""

import numpy as np

from tilewright import simd

ACTIVATIONS = {None: 0, "relu": 1}
RELU = ACTIVATIONS["relu"]


@simd.inline
def finish(total, i, j, bias, residual, activation):
    """One element: activation(residual[i, j] + total + bias[j]); an empty bias or residual counts as none."""
    if residual.size:
        total += residual[i, j]
    if bias.size:
        total += bias[j]
    if activation == RELU and total < 0:
        total = np.float32(0)  # a NaN compares false and stays
    return total
