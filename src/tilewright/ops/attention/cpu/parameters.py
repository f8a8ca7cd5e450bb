"""The parameters of attention kernels, and the types of their arguments."""

from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.attention.operands import Cache, Look

MANY = 8  # tasks per thread


class Attend(NamedTuple):
    """What a kernel that attends is told."""

    spans: int
    heads: int  # of the cache
    head_size: int  # D; in words rounded up to an even number
    head_keys: int  # words of a head's keys in a slot
    width: int  # words of a row of its values
    head_values: int  # words of all of these
    task_heads: int  # where a task is some heads of a run of spans
    q_step: int  # words from row to row of q
    out_step: int  # elements from row to row of out
    causal: int
    new_k: int  # where new keys and values lie, in words from q; both 0 for none
    new_v: int
    early: int  # 1 if a thread draws its next task one task early; with few tasks it would take one from another thread


class Append(NamedTuple):
    """What a kernel that appends to the cache is told, named as in `Attend`; k_step, v_step: words from row to row."""

    spans: int
    heads: int
    head_size: int
    head_keys: int
    width: int
    head_values: int
    task_heads: int
    k_step: int
    v_step: int


# words are float32, or pairs of bfloat16 typed as float32; offsets and steps count these
APPEND = types.void(
    simd.INPUT, simd.INPUT, simd.OUTPUT, simd.OUTPUT, simd.INDICES, simd.record(Append), simd.TASKS, simd.OUTPUT
)  # of a kernel that appends: k, v, keys, values, spans, job, tasks, scratch


def attend_signature(out: types.Array = simd.OUTPUT_2D):
    """Of a kernel that attends: q, keys, values, spans, scale, out, job, tasks, scratch."""
    return types.void(
        simd.INPUT, simd.OUTPUT, simd.OUTPUT, simd.INDICES, types.float32, out, simd.record(Attend), simd.TASKS,
        simd.OUTPUT,
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


def attend_job(
    q: np.ndarray,
    cache: Cache,
    spans: np.ndarray,
    look: Look,
    out: np.ndarray,
    task_heads: int = 0,
    early: bool = False,
) -> Attend:
    """task_heads, early: see `Attend`."""
    strides = (q.strides[0] // 4, out.strides[0] // out.itemsize)
    own = (0, 0) if look.new is None else [(x.ctypes.data - q.ctypes.data) // 4 for x in look.new]
    return Attend(*_of_cache(cache, spans), task_heads, *strides, int(look.causal), *own, int(early))


def append_job(k: np.ndarray, v: np.ndarray, cache: Cache, spans: np.ndarray, task_heads: int) -> Append:
    """task_heads: see `Attend`."""
    return Append(*_of_cache(cache, spans), task_heads, k.strides[0] // 4, v.strides[0] // 4)


def _of_cache(cache: Cache, spans: np.ndarray) -> tuple[int, ...]:
    """The fields with which both records begin."""
    keys, values = cache.keys[0, 0].size, cache.values[0, 0].size
    D = cache.D + cache.D % numbers_of(cache.dtype)
    return (len(spans), cache.heads, D, keys, cache.values.shape[3], values)
