"""Writing keys and values into the cache: own rows from the batch, a shared beginning from another sequence's slot."""

import functools

import numpy as np

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.attention.cpu.parameters import APPEND, MANY, append_job, elements, flat, numbers_of
from tilewright.ops.attention.operands import COLUMNS, PANEL_VECTORS, SPAN, Cache, Look
from tilewright.ops.core.launch import launch, thread_count
from tilewright.ops.gemm.operands import addresses


@functools.cache
def row_writer(lanes: int):
    """The inline function that writes one position of a head."""
    PANEL = PANEL_VECTORS * lanes

    @simd.inline
    def write_row(k, v, row, keys, values, target, position, job):
        """D numbers of a key to its column of a panel, D of a value to its row, zeros to its end. row: (in k, in v),
        target: (in keys, in values), in elements."""
        D, width = job.head_size, job.width
        key_at, value_at = target[0] + position // PANEL * PANEL * D + position % PANEL, target[1] + position * width
        whole = D - D % lanes
        for d in range(0, whole, lanes):
            simd.scatter(keys, key_at + d * PANEL, PANEL, simd.load(k, row[0] + d, lanes))
        for d in range(whole, D):
            simd.put(keys, key_at + d * PANEL, simd.fetch(k, row[0] + d))
        for d in range(0, D, lanes):
            simd.put_first(values, value_at + d, simd.load_first(v, row[1] + d, D - d, lanes), width - d)

    return write_row


@functools.cache
def value_writer(lanes: int):
    """The inline function that writes a value, or a pair of them, as words."""

    @simd.inline
    def some(v, at, count):
        """`simd.load_halves`, without a mask where none is needed."""
        return simd.load_halves(v, at, lanes, lanes) if count >= lanes else simd.load_halves(v, at, count, lanes)

    @simd.inline
    def put_values(v, at, following, values, value_at, position, size):
        """The value at v[at] as that of `position`; following: (whether an even position's next one is kept with it,
        where that lies). size: (numbers, columns of a row of words)."""
        (pair, after), (D, width) = following, size
        for d in range(0, width, lanes):
            words, target = some(v, at + d // 2, D - d), value_at + position // 2 * width + d
            if position % 2:
                words = simd.join_firsts(simd.load(values, target, lanes), words)
            elif pair:
                words = simd.join_firsts(words, some(v, after + d // 2, D - d))
            else:
                words = simd.join_halves(words, simd.load(values, target, lanes))
            simd.store(values, target, words)

    return put_values


@functools.cache
def word_row_writer(lanes: int):
    """`row_writer` for words of two bfloat16."""
    PANEL, put_values = PANEL_VECTORS * lanes, value_writer(lanes)

    @simd.inline
    def write_row(k, v, row, keys, values, target, position, job):
        D, words = job.head_size, job.head_size // 2
        key_at = target[0] + position // PANEL * PANEL * words + position % PANEL
        whole = words - words % lanes
        for w in range(0, whole, lanes):
            simd.scatter(keys, key_at + w * PANEL, PANEL, simd.load(k, row[0] + w, lanes))
        for w in range(whole, words):
            simd.put(keys, key_at + w * PANEL, simd.fetch(k, row[0] + w))
        put_values(v, row[1], (False, 0), values, target[1], position, (D, job.width))

    return write_row


@functools.cache
def word_square_writer(lanes: int):
    """`square_writer` for words of two bfloat16."""
    PANEL, put_values = PANEL_VECTORS * lanes, value_writer(lanes)

    @simd.inline
    def write_rows(rows, at, strides, cache, target, some, job):
        (k, v), row, (keys, values), (position, count) = rows, at, cache, some
        words, size = job.head_size // 2, (job.head_size, job.width)
        key_at, whole = target[0] + position // PANEL * PANEL * words + position % PANEL, words - words % lanes
        for w in range(0, whole, lanes):
            square = simd.block_load(simd.block_zeros(lanes, 1, lanes), k, row[0] + w, strides[0], count)
            simd.block_put(simd.block_transpose(square), keys, key_at + w * PANEL, PANEL, count)
        for i in range(count):
            for w in range(whole, words):
                simd.put(keys, key_at + w * PANEL + i, simd.fetch(k, row[0] + i * strides[0] + w))
        i = position % 2
        if i:
            put_values(v, row[1], (False, 0), values, target[1], position, size)
        while i < count:
            value_at = row[1] + i * strides[1]
            put_values(v, value_at, (i + 1 < count, value_at + strides[1]), values, target[1], position + i, size)
            i += 2

    return write_rows


@functools.cache
def square_writer(lanes: int):
    """The inline function that writes several positions of a head, of one panel."""
    PANEL = PANEL_VECTORS * lanes

    @simd.inline
    def write_rows(rows, at, strides, cache, target, some, job):
        """`row_writer`'s for some positions, (first, at most `lanes`): a square of keys is turned in registers and goes
        to its panel a vector at a time, where single numbers took as long as attention itself."""
        (k, v), row, (keys, values), (position, count) = rows, at, cache, some
        D, width = job.head_size, job.width
        key_at, whole = target[0] + position // PANEL * PANEL * D + position % PANEL, D - D % lanes
        for d in range(0, whole, lanes):
            square = simd.block_load(simd.block_zeros(lanes, 1, lanes), k, row[0] + d, strides[0], count)
            simd.block_put(simd.block_transpose(square), keys, key_at + d * PANEL, PANEL, count)
        for i in range(count):
            for d in range(whole, D):
                simd.put(keys, key_at + d * PANEL + i, simd.fetch(k, row[0] + i * strides[0] + d))
            value_at, number = target[1] + (position + i) * width, row[1] + i * strides[1]
            for d in range(0, D, lanes):
                simd.put_first(values, value_at + d, simd.load_first(v, number + d, D - d, lanes), width - d)

    return write_rows


@functools.cache
def span_writer(lanes: int, dtype: str):
    """The inline function that writes a span's positions of one head, after the beginning that it copies."""
    PANEL, NUMBERS, float32 = PANEL_VECTORS * lanes, numbers_of(dtype), dtype == "float32"
    write_row = row_writer(lanes) if float32 else word_row_writer(lanes)
    write_rows = square_writer(lanes) if float32 else word_square_writer(lanes)

    @simd.inline
    def copy_start(keys, values, target, source, count, job):
        """The first `count` positions of a head. target, source: (of keys, of values), element offsets."""
        simd.copy(keys, target[0], source[0], (count + PANEL - 1) // PANEL * PANEL * (job.head_size // NUMBERS))
        simd.copy(values, target[1], source[1], (count + NUMBERS - 1) // NUMBERS * job.width)

    @simd.inline
    def write_span(rows, at, strides, cache, spans, s, head, job):
        """rows: (k, v), flat; at, strides: where their first rows begin, and how far apart rows are. cache: (keys,
        values)."""
        (k, v), (keys, values), step = rows, cache, job.head_size // NUMBERS
        keys_a_head, values_a_head = job.head_keys, job.head_values
        slot = spans[s + SPAN.slot] * job.heads + head
        target = (slot * keys_a_head, slot * values_a_head)
        if spans[s + SPAN.source] >= 0:
            other = spans[s + SPAN.source] * job.heads + head
            copy_start(keys, values, target, (other * keys_a_head, other * values_a_head), spans[s + SPAN.first], job)
        i, count = 0, spans[s + SPAN.length]
        while i < count:
            row, position = spans[s + SPAN.row] + i, spans[s + SPAN.first] + i
            place = (at[0] + row * strides[0] + head * step, at[1] + row * strides[1] + head * step)
            many = min(lanes, count - i, PANEL - position % PANEL)
            if many == 1:
                write_row(k, v, place, keys, values, target, position, job)
            else:
                write_rows((k, v), place, strides, (keys, values), target, (position, many), job)
            i += many

    return write_span


@functools.cache
def append_kernel(lanes: int, dtype: str):
    """The kernel for a vector width and an element type. A task is some heads of a run of spans (`runs_of`), whose rows
    are read as they lie: a head after the other would read a piece of every row at a time, each in a page of its own.
    """
    write_span = span_writer(lanes, dtype)

    @simd.kernel(APPEND, name=f"attention.append.{dtype}.{lanes}")
    def append_rows(k, v, keys, values, spans, job, tasks, scratch):
        """spans: then the first span of each run, and their end."""
        per, table, steps = job.task_heads, job.spans * COLUMNS, (job.k_step, job.v_step)
        groups = (job.heads + per - 1) // per
        task = simd.draw(tasks)
        while task >= 0:
            run, head = table + task // groups, task % groups * per
            for s in range(spans[run] * COLUMNS, spans[run + 1] * COLUMNS, COLUMNS):
                for h in range(head, min(head + per, job.heads)):
                    write_span((k, v), (0, 0), steps, (keys, values), spans, s, h, job)
            task = simd.draw(tasks)

    return append_rows


def runs_of(spans: np.ndarray) -> np.ndarray:
    """int64: the first span of each run, and the number of spans. A run holds each span with the one in the batch whose
    beginning it copies, with those of its own slot, whose words they may share, and all between; runs may be computed
    in any order."""
    writer = {int(slot): i for i, slot in reversed(list(enumerate(spans[:, SPAN.slot])))}
    first = np.arange(len(spans))
    for i in np.flatnonzero(spans[:, SPAN.source] >= 0).tolist():
        other = writer.get(int(spans[i, SPAN.source]), i)
        first[max(i, other)] = min(first[max(i, other)], i, other)
    if len(writer) < len(spans):
        first = np.minimum(first, [writer[int(slot)] for slot in spans[:, SPAN.slot]])
    needed = np.minimum.accumulate(first[::-1])[::-1]  # the earliest span that this one or a later one needs
    return np.append(np.flatnonzero(needed >= np.arange(len(spans))), len(spans))


def append_to(k: np.ndarray, v: np.ndarray, cache: Cache, spans: np.ndarray) -> None:
    """k, v (rows, heads * D) as the cache keeps them, see `elements`; spans int64 (n, COLUMNS)."""
    lanes, (k, v) = cpu().lanes, map(elements, (k, v))
    (k_flat, _, _), (v_flat, _, _) = addresses(k), addresses(v)
    runs = runs_of(spans)
    per = cache.heads if len(runs) > MANY * thread_count() else 1
    job = append_job(k, v, cache, spans, per)
    kernel, tasks = append_kernel(lanes, cache.dtype), (len(runs) - 1) * -(-cache.heads // per)
    arrays = (k_flat, v_flat, *flat(cache), np.append(spans, runs), job)
    launch(kernel, *arrays, tasks=tasks, words=1)


def keep_new(cache: Cache, spans: np.ndarray, look: Look) -> None:
    """What `Look.new` asks for, by a rung that does not do it on the way."""
    if look.new is not None:
        append_to(*look.new, cache, spans)
