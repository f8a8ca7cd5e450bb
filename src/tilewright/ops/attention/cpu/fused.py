"""One scalar kernel for scores, mask, softmax and values: the scores of a query stay in scratch, in L1.

Computes out[i] = softmax(scale * q[i] @ k.T) @ v of each head with scalar loops. The latency of scalar multiply-adds is
the limit. It is slow where prompts are long, from about 64 positions on: `cpu.unfused` multiplies them by matmul, in
vectors.
"""

import functools
import math

import numpy as np

from tilewright import simd
from tilewright.ops.attention.cpu.append import append_first
from tilewright.ops.attention.cpu.records import attend_job, attend_signature, query_block
from tilewright.ops.attention.operands import COLUMNS, SPAN, AttendOptions, Cache, panel
from tilewright.ops.core.launch import launch, threads
from tilewright.ops.gemm.operands import addresses


@functools.cache
def scalar_kernel(PANEL: int):
    """The kernel for a width of the cache's panels."""

    @simd.inline
    def weigh_keys(q, keys, block, scale, D, weights):
        """Fills weights[: block.visible] with exp(score - largest score) of each key and returns their sum."""
        best, total = np.float32(-np.inf), np.float32(0)
        for t in range(block.visible):
            score = np.float32(0)
            for d in range(D):
                score += q[block.at.q + d] * keys[block.at.keys + t // PANEL * PANEL * D + d * PANEL + t % PANEL]
            weights[t] = score * scale
            best = max(best, weights[t]) if weights[t] == weights[t] else weights[t]
        for t in range(block.visible):
            weights[t] = math.exp(weights[t] - best)
            total += weights[t]
        return total

    @simd.kernel(attend_signature(), name=f"attention.fused.{PANEL}")
    def attend_all(q, keys, values, spans, scale, out, job, tasks, scratch):
        """q, keys, values: flat float32. spans: flat. out: (rows, heads * D). job: `Attend`. scratch: a weight per
        position."""
        D, width = job.head_size, job.width
        for s in range(0, job.spans * COLUMNS, COLUMNS):
            for head in range(job.heads):
                for i in range(spans[s + SPAN.length]):
                    row, block = spans[s + SPAN.row] + i, query_block(spans, s, head, i, job)
                    total = weigh_keys(q, keys, block, scale, D, scratch)
                    for d in range(D):
                        result = np.float32(0)
                        for t in range(block.visible):
                            result += scratch[t] * values[block.at.values + t * width + d]
                        out[row, head * D + d] = result / total

    return attend_all


def attend(q: np.ndarray, cache: Cache, spans: np.ndarray, options: AttendOptions, out: np.ndarray) -> None:
    """Attention of q to the cache, written to out; see `ladder` for the arguments."""
    append_first(cache, spans, options)
    arrays = (addresses(q)[0], cache.keys.reshape(-1), cache.values.reshape(-1), spans.reshape(-1))
    job = attend_job(q, cache, spans, options, out)
    with threads(1):
        launch(scalar_kernel(panel()), *arrays, np.float32(options.scale), out, job, tasks=1, words=cache.length)
