"""One scalar kernel for scores, mask, softmax and values: the scores of a query stay in scratch, that is in L1.

Loses where prompts are long, from some 64 positions on: those products of `cpu.unfused` are matmul's, in vectors.
"""

import functools
import math

import numpy as np

from tilewright import simd
from tilewright.ops.attention.cpu.append import keep_new
from tilewright.ops.attention.cpu.parameters import attend_job, attend_signature
from tilewright.ops.attention.operands import COLUMNS, SPAN, Cache, Look, panel
from tilewright.ops.core.launch import launch, threads
from tilewright.ops.gemm.operands import addresses


@functools.cache
def scalar_kernel(PANEL: int):
    """The kernel for a width of the cache's panels."""

    @simd.inline
    def one_query(q, q_at, keys, k_at, visible, scale, D, scores):
        """Fills scores[: visible] with the odds of each key and returns their sum."""
        best, total = np.float32(-np.inf), np.float32(0)
        for t in range(visible):
            score = np.float32(0)
            for d in range(D):
                score += q[q_at + d] * keys[k_at + t // PANEL * PANEL * D + d * PANEL + t % PANEL]
            scores[t] = score * scale
            best = max(best, scores[t]) if scores[t] == scores[t] else scores[t]
        for t in range(visible):
            scores[t] = math.exp(scores[t] - best)
            total += scores[t]
        return total

    @simd.kernel(attend_signature(), name=f"attention.fused.{PANEL}")
    def attend_all(q, keys, values, spans, scale, out, job, tasks, scratch):
        D, width = job.head_size, job.width
        for s in range(0, job.spans * COLUMNS, COLUMNS):
            for head in range(job.heads):
                at = spans[s + SPAN.slot] * job.heads + head
                k_at, v_at = at * job.head_keys, at * job.head_values
                for i in range(spans[s + SPAN.length]):
                    row = spans[s + SPAN.row] + i
                    visible = spans[s + SPAN.first] + (i + 1 if job.causal else spans[s + SPAN.length])
                    q_at = row * job.q_step + head * D
                    total = one_query(q, q_at, keys, k_at, visible, scale, D, scratch)
                    for d in range(D):
                        result = np.float32(0)
                        for t in range(visible):
                            result += scratch[t] * values[v_at + t * width + d]
                        out[row, head * D + d] = result / total

    return attend_all


def attend(q: np.ndarray, cache: Cache, spans: np.ndarray, look: Look, out: np.ndarray) -> None:
    """Attention of q to the cache, written to out; see `ladder` for the arguments."""
    keep_new(cache, spans, look)
    arrays = (addresses(q)[0], cache.keys.reshape(-1), cache.values.reshape(-1), spans.reshape(-1))
    with threads(1):
        launch(
            scalar_kernel(panel()), *arrays, np.float32(look.scale), out, attend_job(q, cache, spans, look, out),
            tasks=1, words=cache.length,
        )  # fmt: skip
