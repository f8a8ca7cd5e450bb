"""Write to the cache: append the rows of new positions, or copy a prefix from another sequence's slot.

A key of D elements is written down a column of its panel (D, PANEL), a value along a row (width,), both at `position`
of the slot. Memory bandwidth is the limit. In bfloat16 a word holds two elements: elements 2 d and 2 d + 1 of a key,
but positions 2 t and 2 t + 1 of an element of a value. So two positions share the words of a value.
"""

import functools

import numpy as np

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.attention.cpu.records import (
    APPEND,
    MANY,
    KeyValue,
    append_job,
    as_words,
    cache_offsets,
    elements_per_word,
    flat,
)
from tilewright.ops.attention.operands import COLUMNS, PANEL_VECTORS, SPAN, AttendOptions, Cache
from tilewright.ops.core.launch import launch, thread_count
from tilewright.ops.gemm.operands import addresses


@functools.cache
def key_writers(lanes: int):
    """(write the key of one position, write the keys of up to `lanes` positions of one panel): inline functions."""
    PANEL = PANEL_VECTORS * lanes

    @simd.inline
    def write_key(k, k_at, keys, keys_at, position, job):
        """Write the head at k[k_at] to a column of the panels that start at keys[keys_at]."""
        words = job.head_words
        column, whole = keys_at + position // PANEL * PANEL * words + position % PANEL, words - words % lanes
        for w in range(0, whole, lanes):
            simd.scatter(keys, column + w * PANEL, PANEL, simd.load(k, k_at + w, lanes))
        for w in range(whole, words):
            simd.put(keys, column + w * PANEL, simd.fetch(k, k_at + w))

    @simd.inline
    def write_keys(k, k_at, k_step, keys, keys_at, position, count, job):
        """`write_key` for `count` rows of stride k_step. Squares are transposed in registers and stored as vectors:
        storing single elements took as long as attention itself."""
        words = job.head_words
        column, whole = keys_at + position // PANEL * PANEL * words + position % PANEL, words - words % lanes
        for w in range(0, whole, lanes):
            square = simd.block_load(simd.block_zeros(lanes, 1, lanes), k, k_at + w, k_step, count)
            simd.block_put(simd.block_transpose(square), keys, column + w * PANEL, PANEL, count)
        for i in range(count):
            for w in range(whole, words):
                simd.put(keys, column + w * PANEL + i, simd.fetch(k, k_at + i * k_step + w))

    return write_key, write_keys


@functools.cache
def value_writers(lanes: int):
    """(write the value of one position, write the values of `count` positions): inline functions, float32."""

    @simd.inline
    def write_value(v, v_at, values, values_at, position, job):
        """The head at v[v_at] to its row of values, and zeros up to the end of that row."""
        target = values_at + position * job.width
        for d in range(0, job.head_size, lanes):
            vector = simd.load_first(v, v_at + d, job.head_size - d, lanes)
            simd.put_first(values, target + d, vector, job.width - d)

    @simd.inline
    def write_values(v, v_at, v_step, values, values_at, position, count, job):
        """`write_value` for `count` rows of stride v_step."""
        for i in range(count):
            write_value(v, v_at + i * v_step, values, values_at, position + i, job)

    return write_value, write_values


@functools.cache
def word_value_writers(lanes: int):
    """`value_writers` for words of two bfloat16."""

    @simd.inline
    def load(v, at, count):
        """`simd.load_halves`, without a mask if all lanes are loaded."""
        return simd.load_halves(v, at, lanes, lanes) if count >= lanes else simd.load_halves(v, at, count, lanes)

    @simd.inline
    def write_words(v, v_at, pair, next_at, values, values_at, position, job):
        """The head at v[v_at] to half of its row of words. If `position` is even and `pair` is True, the head at
        v[next_at], of the next position, fills the other half. Offsets may be negative."""
        for d in range(0, job.width, lanes):
            left = job.head_size - d
            words, target = load(v, v_at + d // 2, left), values_at + position // 2 * job.width + d
            if position % 2:
                words = simd.join_firsts(simd.load(values, target, lanes), words)
            elif pair:
                words = simd.join_firsts(words, load(v, next_at + d // 2, left))
            else:
                words = simd.join_halves(words, simd.load(values, target, lanes))
            simd.store(values, target, words)

    @simd.inline
    def write_value(v, v_at, values, values_at, position, job):
        write_words(v, v_at, False, 0, values, values_at, position, job)

    @simd.inline
    def write_values(v, v_at, v_step, values, values_at, position, count, job):
        i = position % 2
        if i:
            write_words(v, v_at, False, 0, values, values_at, position, job)
        while i < count:
            at = v_at + i * v_step
            write_words(v, at, i + 1 < count, at + v_step, values, values_at, position + i, job)
            i += 2

    return write_value, write_values


@functools.cache
def row_writers(lanes: int, dtype: str):
    """(write the key and value of one position, write those of up to `lanes` positions of one panel): inline functions.

    new, cache: arrays of keys and values. at, target: offsets of the first row and of the slot's head. step: strides
    between rows."""
    write_key, write_keys = key_writers(lanes)
    write_value, write_values = value_writers(lanes) if dtype == "float32" else word_value_writers(lanes)

    @simd.inline
    def write_row(new, at, cache, target, position, job):
        write_key(new.keys, at.keys, cache.keys, target.keys, position, job)
        write_value(new.values, at.values, cache.values, target.values, position, job)

    @simd.inline
    def write_rows(new, at, step, cache, target, position, count, job):
        write_keys(new.keys, at.keys, step.keys, cache.keys, target.keys, position, count, job)
        write_values(new.values, at.values, step.values, cache.values, target.values, position, count, job)

    return write_row, write_rows


@functools.cache
def span_writer(lanes: int, dtype: str):
    """The inline function that appends a span's positions of one head, after the prefix that it copies."""
    PANEL, ELEMENTS, (write_row, write_rows) = (
        PANEL_VECTORS * lanes,
        elements_per_word(dtype),
        row_writers(lanes, dtype),
    )

    @simd.inline
    def copy_prefix(cache, target, source, count, job):
        """The first `count` positions of a head, between the offsets of two slots."""
        panels = (count + PANEL - 1) // PANEL
        simd.copy(cache.keys, target.keys, source.keys, panels * PANEL * job.head_words)
        simd.copy(cache.values, target.values, source.values, (count + ELEMENTS - 1) // ELEMENTS * job.width)

    @simd.inline
    def write_span(new, start, step, cache, spans, s, head, job):
        """new: arrays of new rows, which start at the offsets `start`; step: strides between them."""
        target = cache_offsets(spans[s + SPAN.slot], head, job)
        if spans[s + SPAN.source] >= 0:
            source = cache_offsets(spans[s + SPAN.source], head, job)
            copy_prefix(cache, target, source, spans[s + SPAN.first], job)
        i, count, column = 0, spans[s + SPAN.length], head * job.head_words
        while i < count:
            row, position = spans[s + SPAN.row] + i, spans[s + SPAN.first] + i
            at = KeyValue(start.keys + row * step.keys + column, start.values + row * step.values + column)
            many = min(lanes, count - i, PANEL - position % PANEL)
            if many == 1:
                write_row(new, at, cache, target, position, job)
            else:
                write_rows(new, at, step, cache, target, position, many, job)
            i += many

    return write_span


@functools.cache
def append_kernel(lanes: int, dtype: str):
    """The kernel for a vector width and an element type. A task is some heads of a run of spans (`runs_of`). Its rows
    are read in the order of memory: one head after the other would touch a page per row for each head.
    """
    write_span = span_writer(lanes, dtype)

    @simd.kernel(APPEND, name=f"attention.append.{dtype}.{lanes}")
    def append_rows(k, v, keys, values, spans, job, tasks, scratch):
        """k, v: new rows. keys, values: flat cache. spans: the spans, then the first span of each run, and their end.
        job: `Append`."""
        per, table, step = job.task_heads, job.spans * COLUMNS, KeyValue(job.k_step, job.v_step)
        groups = (job.heads + per - 1) // per
        task = simd.draw(tasks)
        while task >= 0:
            run, head = table + task // groups, task % groups * per
            for s in range(spans[run] * COLUMNS, spans[run + 1] * COLUMNS, COLUMNS):
                for h in range(head, min(head + per, job.heads)):
                    write_span(KeyValue(k, v), KeyValue(0, 0), step, KeyValue(keys, values), spans, s, h, job)
            task = simd.draw(tasks)

    return append_rows


def runs_of(spans: np.ndarray) -> np.ndarray:
    """int64: the first span of each run, and the number of spans.

    Threads may compute runs in any order. So a run holds each span together with the span whose prefix it copies, with
    the other spans of its slot, whose words it may share, and with all spans between these.
    """
    writer = {int(slot): i for i, slot in reversed(list(enumerate(spans[:, SPAN.slot])))}
    first = np.arange(len(spans))
    for i in np.flatnonzero(spans[:, SPAN.source] >= 0).tolist():
        other = writer.get(int(spans[i, SPAN.source]), i)
        first[max(i, other)] = min(first[max(i, other)], i, other)
    if len(writer) < len(spans):
        first = np.minimum(first, [writer[int(slot)] for slot in spans[:, SPAN.slot]])
    needed = np.minimum.accumulate(first[::-1])[::-1]  # the earliest span that this one or a later one needs
    return np.append(np.flatnonzero(needed >= np.arange(len(spans))), len(spans))


def append(k: np.ndarray, v: np.ndarray, cache: Cache, spans: np.ndarray) -> None:
    """k, v: (rows, heads * D) in the cache's dtype. spans: int64 (n, COLUMNS)."""
    lanes, (k, v) = cpu().lanes, map(as_words, (k, v))
    runs = runs_of(spans)
    per = cache.heads if len(runs) > MANY * thread_count() else 1
    job = append_job(k, v, cache, spans, per)
    kernel, tasks = append_kernel(lanes, cache.dtype), (len(runs) - 1) * -(-cache.heads // per)
    arrays = (addresses(k)[0], addresses(v)[0], *flat(cache), np.append(spans, runs), job)
    launch(kernel, *arrays, tasks=tasks, words=1)


def append_first(cache: Cache, spans: np.ndarray, options: AttendOptions) -> None:
    """Append `options.new` for a rung whose kernel does not."""
    if options.new is not None:
        append(*options.new, cache, spans)
