"""Parameters of the CPU kernels of attention, and the types of their arguments.

A word is one float32, or two bfloat16 that kernels see as one float32. Offsets and strides of q, keys and values count
words. Offsets and strides of out count its elements.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.attention.operands import SPAN, AttendOptions, Cache

MANY = 8  # tasks per thread


class Attend(NamedTuple):
    """Job of a kernel that attends."""

    spans: int
    heads: int  # heads of the cache
    head_size: int  # D, rounded up to an even number in bfloat16
    head_words: int  # words of a head in a row of q
    head_keys: int  # words of a head's keys in a slot
    width: int  # words of a row of its values
    head_values: int  # words of a head's values in a slot
    task_heads: int  # heads of a task, where a task is some heads of a run of spans
    q_step: int  # words from one row of q to the next
    out_step: int  # elements from one row of out to the next
    causal: int
    new_k: int  # offset of new keys from q; 0 if there are none
    new_v: int  # offset of new values from q; 0 if there are none
    early: int  # 1: a thread draws its next task one task early. Only with many tasks, or other threads would starve


class Append(NamedTuple):
    """Job of a kernel that appends to the cache, see `Attend`. k_step, v_step: words from one row to the next."""

    spans: int
    heads: int
    head_size: int
    head_words: int
    head_keys: int
    width: int
    head_values: int
    task_heads: int
    k_step: int
    v_step: int


class KeyValue(NamedTuple):
    """One thing for keys and one for values: arrays, offsets, or strides."""

    keys: Any
    values: Any


class Operands(NamedTuple):
    """One thing for each operand of attention: arrays, offsets, or strides."""

    q: Any
    keys: Any
    values: Any
    out: Any


class Block(NamedTuple):
    """A block of queries. at: offsets of its first row. step: strides between its rows. visible: keys that the first
    row may attend to. more: additional keys of each next row. next_keys: offset of the keys that the next task reads,
    which are prefetched; -1 for none."""

    at: Operands
    step: Operands
    visible: int
    more: int
    next_keys: int


@simd.inline
def cache_offsets(slot, head, job):
    """Offsets of a head's keys and values in a slot."""
    index = slot * job.heads + head
    return KeyValue(index * job.head_keys, index * job.head_values)


@simd.inline
def query_block(spans, s, head, i, job):
    """The block of one head that starts at query i of the span at s."""
    cached, row = cache_offsets(spans[s + SPAN.slot], head, job), spans[s + SPAN.row] + i
    q_at, out_at = row * job.q_step + head * job.head_words, row * job.out_step + head * job.head_size
    visible = spans[s + SPAN.first] + (i + 1 if job.causal else spans[s + SPAN.length])
    step = Operands(job.q_step, 0, 0, job.out_step)
    return Block(Operands(q_at, cached.keys, cached.values, out_at), step, visible, job.causal, -1)


# k, v, keys, values, spans, job, tasks, scratch
APPEND = types.void(
    simd.INPUT, simd.INPUT, simd.OUTPUT, simd.OUTPUT, simd.INDICES, simd.record(Append), simd.TASKS, simd.OUTPUT
)


def attend_signature(out: types.Array = simd.OUTPUT_2D):
    """Signature of a kernel that attends: q, keys, values, spans, scale, out, job, tasks, scratch."""
    return types.void(
        simd.INPUT, simd.OUTPUT, simd.OUTPUT, simd.INDICES, types.float32, out, simd.record(Attend), simd.TASKS,
        simd.OUTPUT,
    )  # fmt: skip


def elements_per_word(dtype: str) -> int:
    """1 for float32, 2 for bfloat16."""
    return 1 if dtype == "float32" else 2


def as_words(rows: np.ndarray) -> np.ndarray:
    """Rows of float32 unchanged, rows of bfloat16 as words."""
    return rows.view(np.float32)


def flat(cache: Cache) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values as flat arrays of words."""
    return tuple(x.reshape(-1).view(np.float32) for x in (cache.keys, cache.values))


def attend_job(
    q: np.ndarray,
    cache: Cache,
    spans: np.ndarray,
    options: AttendOptions,
    out: np.ndarray,
    task_heads: int = 0,
    early: bool = False,
) -> Attend:
    """task_heads, early: see `Attend`."""
    strides = (q.strides[0] // 4, out.strides[0] // out.itemsize)
    new = (0, 0) if options.new is None else [(x.ctypes.data - q.ctypes.data) // 4 for x in options.new]
    return Attend(*_common_fields(cache, spans), task_heads, *strides, int(options.causal), *new, int(early))


def append_job(k: np.ndarray, v: np.ndarray, cache: Cache, spans: np.ndarray, task_heads: int) -> Append:
    """task_heads: see `Attend`."""
    return Append(*_common_fields(cache, spans), task_heads, k.strides[0] // 4, v.strides[0] // 4)


def _common_fields(cache: Cache, spans: np.ndarray) -> tuple[int, ...]:
    """The fields of both jobs up to head_values."""
    per_word = elements_per_word(cache.dtype)
    D = cache.D + cache.D % per_word
    head_keys, head_values = cache.keys[0, 0].size, cache.values[0, 0].size
    return (len(spans), cache.heads, D, D // per_word, head_keys, cache.values.shape[3], head_values)
