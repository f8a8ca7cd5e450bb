"""What an attention kernel is told: the fields of its plan, by their names, and the types of what it is handed."""

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.attention.operands import Cache, Look

# every plan: the next task; how many spans; the cache's heads, numbers of a head (D, in words rounded up to an even
# one), elements of a head's keys in a slot, of a row of its values, of all of these; where a task is heads of a run of
# spans, how many runs, and heads
NEXT, SPANS, HEADS, HEAD_SIZE, KEYS_A_HEAD, WIDTH, VALUES_A_HEAD, RUNS, HEADS_A_TASK = range(9)
# a kernel's that looks: numbers from row to row of q, of out; whether it is causal; where new keys and values lie, in
# numbers from q, both 0 for none; whether a thread draws its next task a task early: not where there are few, as it
# would keep it from another thread
Q_STEP, OUT_STEP, CAUSAL, NEW_K, NEW_V, AHEAD = range(9, 15)
MANY = 8  # tasks a thread
# one's that only keeps: numbers from row to row of k, of v
K_STEP, V_STEP = range(9, 11)

# numbers are float32, or words of two bfloat16 that travel as float32; offsets and steps count these
APPEND = types.void(
    simd.INPUT, simd.INPUT, simd.OUTPUT, simd.OUTPUT, simd.INDICES, simd.PLAN, simd.OUTPUT
)  # of a kernel that only keeps: k, v, keys, values, spans, plan, scratch


def attend_signature(out: types.Array = simd.OUTPUT_2D):
    """Of a kernel that looks: q, keys, values, spans, scale, out, plan, scratch."""
    return types.void(
        simd.INPUT, simd.OUTPUT, simd.OUTPUT, simd.INDICES, types.float32, out, simd.PLAN, simd.OUTPUT
    )  # fmt: skip


def numbers_of(dtype: str) -> int:
    """Numbers in an element of keys and values."""
    return 1 if dtype == "float32" else 2


def elements(rows: np.ndarray) -> np.ndarray:
    """Rows of float32 as they are, of bfloat16 as words."""
    return rows.view(np.float32)


def flat(cache: Cache) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values as a kernel takes them, float32."""
    return tuple(x.reshape(-1).view(np.float32) for x in (cache.keys, cache.values))


def attend_plan(
    q: np.ndarray,
    cache: Cache,
    spans: np.ndarray,
    look: Look,
    out: np.ndarray,
    runs: tuple[int, int] = (0, 0),
    early: bool = False,
) -> np.ndarray:
    """Of a kernel that looks, int64; runs: (how many, heads of a task); early: see AHEAD."""
    strides = (q.strides[0] // 4, out.strides[0] // out.itemsize)
    own = (0, 0) if look.new is None else [(x.ctypes.data - q.ctypes.data) // 4 for x in look.new]
    return np.array([*_of_every(cache, spans, runs), *strides, int(look.causal), *own, int(early)], np.int64)


def append_plan(k: np.ndarray, v: np.ndarray, cache: Cache, spans: np.ndarray, runs: tuple[int, int]) -> np.ndarray:
    """Of a kernel that only keeps, int64; runs: (how many, heads of a task)."""
    return np.array([*_of_every(cache, spans, runs), k.strides[0] // 4, v.strides[0] // 4], np.int64)


def _of_every(cache: Cache, spans: np.ndarray, runs: tuple[int, int]) -> tuple[int, ...]:
    """The fields that all plans begin with."""
    keys, values = cache.keys[0, 0].size, cache.values[0, 0].size
    D = cache.D + cache.D % numbers_of(cache.dtype)
    return (0, len(spans), cache.heads, D, keys, cache.values.shape[3], values, *runs)
