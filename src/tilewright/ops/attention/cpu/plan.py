"""What an attention kernel is told: the fields of its plan, by their names, and the types of what it is handed."""

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.attention.operands import Cache, Look

# every plan: the next task; how many spans; the cache's heads, numbers of a head (D), elements of a head's keys in a
# slot, of a row of its values, of all of these; where a task is heads of a run of spans, how many runs, and heads
NEXT, SPANS, HEADS, HEAD_SIZE, KEYS_A_HEAD, WIDTH, VALUES_A_HEAD, RUNS, HEADS_A_TASK = range(9)
# a kernel's that looks: numbers from row to row of q, of out; whether it is causal; where new keys and values lie, in
# numbers from q, both 0 for none
Q_STEP, OUT_STEP, CAUSAL, NEW_K, NEW_V = range(9, 14)
# one's that only keeps: numbers from row to row of k, of v
K_STEP, V_STEP = range(9, 11)

ELEMENTS = {"float32": types.float32, "bfloat16": types.uint16}


def cache_array(dtype: str) -> types.Array:
    """Numba's type for the cache's elements, seen flat."""
    return types.Array(ELEMENTS[dtype], 1, "C")


def attend_signature(dtype: str):
    """Of a kernel that looks: q, keys, values, spans, scale, out, plan, scratch."""
    flat = cache_array(dtype)
    return types.void(
        simd.INPUT, flat, flat, simd.INDICES, types.float32, simd.OUTPUT_2D, simd.PLAN, simd.OUTPUT
    )  # fmt: skip


def append_signature(dtype: str):
    """Of a kernel that only keeps: k, v, keys, values, spans, plan, scratch."""
    flat = cache_array(dtype)
    return types.void(simd.INPUT, simd.INPUT, flat, flat, simd.INDICES, simd.PLAN, simd.OUTPUT)


def attend_plan(
    q: np.ndarray, cache: Cache, spans: np.ndarray, look: Look, out: np.ndarray, runs: tuple[int, int] = (0, 0)
) -> np.ndarray:
    """Of a kernel that looks, int64; runs: (how many, heads of a task)."""
    strides = (q.strides[0] // 4, out.strides[0] // 4)
    own = (0, 0) if look.new is None else [(x.ctypes.data - q.ctypes.data) // 4 for x in look.new]
    return np.array([*_of_every(cache, spans, runs), *strides, int(look.causal), *own], np.int64)


def append_plan(k: np.ndarray, v: np.ndarray, cache: Cache, spans: np.ndarray, runs: tuple[int, int]) -> np.ndarray:
    """Of a kernel that only keeps, int64; runs: (how many, heads of a task)."""
    return np.array([*_of_every(cache, spans, runs), k.strides[0] // 4, v.strides[0] // 4], np.int64)


def _of_every(cache: Cache, spans: np.ndarray, runs: tuple[int, int]) -> tuple[int, ...]:
    """The fields that all plans begin with."""
    keys, values = cache.keys[0, 0].size, cache.values[0, 0].size
    return (0, len(spans), cache.heads, cache.D, keys, cache.values.shape[3], values, *runs)
