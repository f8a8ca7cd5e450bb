"""logprob in scalar loops: value[i] = logit of the target - max - log(sum of exp(logit - max)).

Two passes over the columns, because no logit is stored: the first finds the largest, the second computes all products
again for the sum. The limit is one scalar multiply-add at a time, waiting for the one before. Every other rung is
faster.
"""

import math

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.gemm.cpu.tiling import TILINGS
from tilewright.ops.gemm.operands import Packed
from tilewright.ops.logprob.operands import Prepared, Results

SIGNATURE = types.void(simd.INPUT_2D, simd.INPUT_2D, simd.INPUT, simd.INDICES, simd.OUTPUT, simd.COUNTERS)


@simd.inline
def logit(a, b, bias, i, j):
    """Row i of a times column j of b, and the bias."""
    total = np.float32(0)
    for p in range(a.shape[1]):
        total += a[i, p] * b[p, j]
    return total + bias[j] if bias.size else total


@simd.kernel(SIGNATURE, name="logprob.naive")
def naive(a, b, bias, targets, value, best):
    """a (M, K), b (K, N), bias (N,) or empty, targets and best (M,), value (M,)."""
    for i in range(a.shape[0]):
        largest, column = np.float32(-np.inf), 0
        for j in range(b.shape[1]):
            x = logit(a, b, bias, i, j)
            if not x <= largest:
                largest, column = x, j
        total = 0.0
        for j in range(b.shape[1]):
            total += math.exp(np.float64(logit(a, b, bias, i, j) - largest))
        wanted = np.float64(logit(a, b, bias, i, targets[i]) - largest)
        value[i], best[i] = np.float32(wanted - math.log(total)) if total > 0 else np.float32(np.nan), column


def plain(weights: Packed) -> np.ndarray:
    """b (K, N) of weights that are plain already, or panels, which are copied."""
    if weights.data.ndim == 2:
        return weights.data
    panels = weights.data.reshape(-1, weights.K, TILINGS[cpu().lanes].NR)
    return np.ascontiguousarray(panels.swapaxes(0, 1).reshape(weights.K, -1)[:, : weights.N])


def score(a: np.ndarray, prepared: Prepared, targets: np.ndarray, results: Results) -> None:
    """The results of every row of a."""
    assert prepared.b is not None
    naive(a, prepared.b, prepared.bias, targets, results.value, results.best)
