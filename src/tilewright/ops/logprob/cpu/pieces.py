"""matmul writes the logits of some rows, then a kernel finds the maximum, the sum of exps and the target of each row.

Changes from `naive`: matmul's fastest kernel, and each product once. The limit is the product; besides, each logit is
written once and read three times, from L2 or L3 if few rows are computed at a time. It is slower than `online`, which
stores no logit.
"""

import functools
import math

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch
from tilewright.ops.core.memory import empty
from tilewright.ops.logprob.operands import Prepared, Results
from tilewright.ops.matmul import matmul
from tilewright.ops.softmax.cpu.vectors import row_functions

LOGITS_BYTES = 16 << 20  # most bytes of logits held at once


@functools.cache
def row_kernel(lanes: int):
    """The kernel for a vector width."""
    largest_of, exp_sum = row_functions(lanes)
    signature = types.void(simd.CONTIGUOUS, simd.INDICES, simd.OUTPUT, simd.COUNTERS, simd.TASKS, simd.OUTPUT)

    @simd.kernel(signature, name=f"logprob.rows.{lanes}")
    def score_rows(logits, targets, value, best, tasks, scratch):
        """logits (rows, N), which the exps overwrite. A task is one row. scratch: float32 (lanes,)."""
        N, x = logits.shape[1], logits.reshape(logits.size)
        for lane in range(lanes):
            scratch[lane] = lane
        lane_ids = simd.load(scratch, 0, lanes)
        i = simd.draw(tasks)
        while i >= 0:
            start, column = i * N, 0
            largest = largest_of(x, start, N, lane_ids)
            while column < N - 1 and simd.fetch(x, start + column) != largest:
                column += 1
            wanted = np.float64(simd.fetch(x, start + targets[i]) - largest)
            total = np.float64(exp_sum(x, start, N, simd.splat(largest, lanes), x, start, lane_ids))
            value[i], best[i] = np.float32(wanted - math.log(total)) if total > 0 else np.float32(np.nan), column
            i = simd.draw(tasks)

    return score_rows


def score(a: np.ndarray, prepared: Prepared, targets: np.ndarray, results: Results) -> None:
    """The results of every row of a, some rows at a time."""
    step, lanes = max(1, LOGITS_BYTES // (4 * prepared.weights.N)), cpu().lanes
    out, bias = empty((min(step, len(a)), prepared.weights.N)), prepared.bias if prepared.bias.size else None
    for i in range(0, len(a), step):
        rows, at = a[i : i + step], slice(i, i + step)
        logits = matmul(rows, prepared.weights, bias=bias, out=out[: len(rows)])
        arrays = logits, targets[at], results.value[at], results.best[at]
        launch(row_kernel(lanes), *arrays, tasks=len(rows), words=lanes)
