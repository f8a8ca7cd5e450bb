"""Prefetches of attention, which hide the latency of memory.

The caches of short sequences are scattered over memory: no stream is long enough for the hardware prefetcher. A core
has few cache misses in flight, so prefetches are spread over the work. s is a span's offset in the flat array `spans`.
"""

import functools

from tilewright import simd
from tilewright.ops.attention.cpu.records import cache_offsets, elements_per_word
from tilewright.ops.attention.operands import PANEL_VECTORS, SPAN
from tilewright.ops.core.memory import LINE

WORDS_PER_LINE = LINE // 4
MOST_ROWS = 64  # rows of a span: up to here, its lines for two heads fit into L1
MOST_WORDS = 4 << 10  # words of a head's keys: from here on, the hardware prefetcher is enough
NO_SPAN = -1


@simd.inline
def next_keys(spans, s, next_s, next_head, job):
    """Offset of the keys that the next task reads, one query of the span at next_s, or -1 if the query at s reads
    at least MOST_WORDS words of keys."""
    near = spans[s + SPAN.first] * job.head_words < MOST_WORDS
    return cache_offsets(spans[next_s + SPAN.slot], next_head, job).keys if near else -1


@functools.cache
def panel_prefetcher(lanes: int):
    """The inline function that prefetches while a panel of keys is read."""
    PANEL = PANEL_VECTORS * lanes

    @simd.inline
    def prefetch_panel(height, arrays, block, keys_at, values_at):
        """One panel row of `height` heads: values of this task to L1, where they are read soon, and keys of the next
        task to L2. Nothing if block.next_keys is -1."""
        if block.next_keys >= 0:
            for i in range(height):
                for line in range(0, PANEL, WORDS_PER_LINE):
                    simd.prefetch(arrays.values, values_at + i * block.step.values + line)
                    simd.prefetch_far(arrays.keys, keys_at + i * block.step.keys + line)

    return prefetch_panel


@functools.cache
def head_prefetchers(lanes: int, dtype: str):
    """(prefetch the rows that a span's next head reads, prefetch the lines that it writes): inline functions. There are
    two, with work between them, so that no more lines are in flight than a core can wait for."""
    ELEMENTS, PANEL = elements_per_word(dtype), PANEL_VECTORS * lanes

    @simd.inline
    def prefetch_rows(q, spans, s, head, job):
        """Rows of q and of new keys and values; s: offset of the span, or NO_SPAN."""
        if s == NO_SPAN or spans[s + SPAN.length] > MOST_ROWS:
            return
        for row in range(spans[s + SPAN.row], spans[s + SPAN.row] + spans[s + SPAN.length]):
            at = row * job.q_step + head * job.head_words
            for d in range(at, at + job.head_words, WORDS_PER_LINE):
                simd.prefetch(q, d)
                if job.new_k:
                    simd.prefetch(q, d + job.new_k)
                    simd.prefetch(q, d + job.new_v)

    @simd.inline
    def prefetch_appended(arrays, spans, s, head, job):
        """The lines of the cache where the first panel of new keys and all new values go."""
        width, first, count = job.width, spans[s + SPAN.first], spans[s + SPAN.length]
        at = cache_offsets(spans[s + SPAN.slot], head, job)
        column = at.keys + first // PANEL * PANEL * job.head_words + first % PANEL
        for d in range(job.head_words):
            simd.prefetch_write(arrays.keys, column + d * PANEL)
        for d in range(first // ELEMENTS * width, (first + count + ELEMENTS - 1) // ELEMENTS * width, WORDS_PER_LINE):
            simd.prefetch_write(arrays.values, at.values + d)

    @simd.inline
    def prefetch_results(arrays, spans, s, head, job):
        """Rows of out, and the lines of `prefetch_appended`; s: offset of the span, or NO_SPAN."""
        if s == NO_SPAN or spans[s + SPAN.length] > MOST_ROWS:
            return
        if job.new_k:
            prefetch_appended(arrays, spans, s, head, job)
        for row in range(spans[s + SPAN.row], spans[s + SPAN.row] + spans[s + SPAN.length]):
            at = row * job.out_step + head * job.head_size
            for d in range(at, at + job.head_size, LINE // arrays.out.itemsize):
                simd.prefetch_write(arrays.out, d)

    return prefetch_rows, prefetch_results
