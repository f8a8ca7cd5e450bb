"""One scalar kernel for scores, mask, softmax and values: the scores of a query stay in scratch, that is in L1."""

import functools
import math

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops._threads import launch, threads
from tilewright.ops.attention.cpu.append import cache_array, keep_new
from tilewright.ops.attention.operands import COLUMNS, COUNT, FIRST, ROW, SLOT, Cache, Look, panel
from tilewright.ops.matmul.operands import addresses


def plan_of(q: np.ndarray, cache: Cache, spans: np.ndarray, look: Look, out: np.ndarray) -> np.ndarray:
    """int64: next task, spans, heads, D, row stride of q, of out, keys a head, width, length, causal, and where new
    keys and values lie, in elements from q: 0, 0 for none."""
    strides = (q.strides[0] // 4, out.strides[0] // 4)
    sizes = (cache.keys[0, 0].size, cache.values.shape[3], cache.length, int(look.causal))
    own = (0, 0) if look.new is None else [(x.ctypes.data - q.ctypes.data) // 4 for x in look.new]
    return np.array([0, len(spans), cache.heads, cache.D, *strides, *sizes, *own], np.int64)


def signature(dtype: str):
    """Of every attention kernel: q, keys, values, spans, scale, out, plan, scratch."""
    flat = cache_array(dtype)
    return types.void(
        simd.INPUT, flat, flat, simd.INDICES, types.float32, simd.OUTPUT_2D, simd.PLAN, simd.OUTPUT
    )  # fmt: skip


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

    @simd.kernel(signature("float32"), name=f"attention.fused.{PANEL}")
    def attend_all(q, keys, values, spans, scale, out, plan, scores):
        D, width, length = plan[3], plan[7], plan[8]
        for s in range(0, plan[1] * COLUMNS, COLUMNS):
            for head in range(plan[2]):
                at = spans[s + SLOT] * plan[2] + head
                k_at, v_at = at * plan[6], at * width * length
                for i in range(spans[s + COUNT]):
                    row = spans[s + ROW] + i
                    visible = spans[s + FIRST] + (i + 1 if plan[9] else spans[s + COUNT])
                    q_at = row * plan[4] + head * D
                    total = one_query(q, q_at, keys, k_at, visible, scale, D, scores)
                    for d in range(D):
                        result = np.float32(0)
                        for t in range(visible):
                            result += scores[t] * values[v_at + t * width + d]
                        out[row, head * D + d] = result / total

    return attend_all


def attend(q: np.ndarray, cache: Cache, spans: np.ndarray, look: Look, out: np.ndarray) -> None:
    """The rung's run function; see `ladder`."""
    keep_new(cache, spans, look)
    arrays = (addresses(q)[0], cache.keys.reshape(-1), cache.values.reshape(-1), spans.reshape(-1))
    with threads(1):
        launch(
            scalar_kernel(panel()), *arrays, np.float32(look.scale), out, plan_of(q, cache, spans, look, out),
            tasks=1, words=cache.length,
        )  # fmt: skip
