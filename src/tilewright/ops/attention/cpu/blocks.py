"""Attention in explicit vectors: queries of one head against panels of keys, their scores in L1, then rows of values.

A block of ROWS queries scores a panel of keys with one outer product a number of the head (`block_rank1_rows`), so that
a loaded vector of keys feeds ROWS queries and nothing is summed across lanes. Softmax runs along the scores in scratch.
Then one outer product a position adds its row of values to ROWS results. Sums run along d and along positions in
order, whatever the block, so a query's bits do not depend on which others share its block.

New keys and values are kept by the task that looks at them, span after span: one pass over the batch instead of two,
1 to 10 % faster (Zen 5).

It loses to `fused` where vectors stay nearly empty: on 4 keys of heads of 4 numbers it took 1.2 to 3 times as long
(Emerald Rapids, one thread).
"""

import functools

import numpy as np

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops._memory import LINE
from tilewright.ops._threads import launch, thread_count, threads
from tilewright.ops.attention.cpu.append import row_writer, runs_of, span_writer
from tilewright.ops.attention.cpu.plan import (
    CAUSAL,
    HEAD_SIZE,
    HEADS,
    HEADS_A_TASK,
    KEYS_A_HEAD,
    NEW_K,
    NEW_V,
    NEXT,
    OUT_STEP,
    Q_STEP,
    RUNS,
    SPANS,
    VALUES_A_HEAD,
    WIDTH,
    attend_plan,
    attend_signature,
)
from tilewright.ops.attention.operands import (
    COLUMNS,
    COUNT,
    FIRST,
    PANEL_VECTORS,
    ROW,
    SLOT,
    SOURCE,
    Cache,
    Look,
    panels_of,
)
from tilewright.ops.matmul.operands import addresses

ALONE = 1 << 17  # numbers of values up to which one thread does all: 20 microseconds, as long as waking another
GROUP = 4  # heads of a lone query: 8 accumulators hide the latency of an FMA
NUMBERS = LINE // 4  # float32 in a cache line
RAMP = np.arange(16, dtype=np.float32)
# lanes: queries in a block, two vectors of sums each: 16 of AVX-512's 32 registers, 8 of AVX2's 16, 16 of NEON's 32;
# then those of the smaller blocks that take what is left over
ROWS = {16: (8, 2, 1), 8: (4, 2, 1), 4: (8, 2, 1)}


@functools.cache
def softmax_rows(lanes: int):
    """The inline function that turns a query's scores into shares."""

    @simd.inline
    def share(scores, at, visible, end, scale):
        """scores.flat[at : at + end], whole vectors, = softmax of the first `visible` times scale, then zeros."""
        hidden, ramp, total = simd.splat(np.float32(-np.inf), lanes), simd.load(RAMP, 0, lanes), simd.zeros(lanes)
        best = hidden
        for t in range(0, end, lanes):
            x = simd.load(scores, at + t, lanes)
            if t + lanes > visible:  # numbers stored one by one would have to reach the cache before they are loaded
                x = simd.select_greater(simd.splat(np.float32(visible - t), lanes), ramp, x, hidden)
                simd.store(scores, at + t, x)
            best = simd.select_greater(best, x, best, x)  # a NaN among them makes the sum one
        most, factor = simd.splat(simd.reduce_max(best), lanes), simd.splat(scale, lanes)
        for t in range(0, end, lanes):
            odds = simd.exp(simd.multiply(simd.subtract(simd.load(scores, at + t, lanes), most), factor))
            simd.store(scores, at + t, odds)
            total = simd.add(total, odds)
        inverse = simd.splat(np.float32(1) / simd.reduce_add(total), lanes)
        for t in range(0, end, lanes):
            simd.store(scores, at + t, simd.multiply(simd.load(scores, at + t, lanes), inverse))

    return share


@functools.cache
def block_function(lanes: int):
    """The inline function that computes a block: scores, shares, values."""
    PANEL, share = PANEL_VECTORS * lanes, softmax_rows(lanes)

    @simd.inline
    def score(height, vectors, arrays, at, steps, D, target):
        """`height` queries against `vectors` vectors of a panel of keys; target: (scores, where, their row stride)."""
        (q, keys), (q_at, k_at), (q_step, k_step), (scores, to, stride) = arrays, at, steps, target
        block = simd.block_zeros(height, vectors, lanes)
        for d in range(D):
            block = simd.block_rank1_rows(block, q, q_at + d, q_step, keys, k_at + d * PANEL, k_step)
        simd.block_store(block, scores, to, stride, vectors * lanes)

    @simd.inline
    def weigh(height, vectors, arrays, places, length, end, plan, scores):
        """`vectors` vectors of `height` results = shares times values. places: (of values, their stride between rows of
        the block, of the result, the stride there, numbers to write)."""
        (_, _, values, out), (v_at, v_step, o_at, o_step, left), width = arrays, places, plan[WIDTH]
        sums = simd.block_zeros(height, vectors, lanes)
        for t in range(length):
            sums = simd.block_rank1_rows(sums, scores, t, end, values, v_at + t * width, v_step)
        simd.block_store(sums, out, o_at, o_step, left)

    @simd.inline
    def attend_block(height, arrays, at, steps, seen, scale, plan, scores):
        """A block of `height` rows. at: of the first row in (q, keys, values, out), steps: from row to row there; seen:
        (keys visible to the first row, how many more to each next one)."""
        (q, keys, _, _), (q_at, k_at, v_at, o_at), (q_step, k_step, v_step, o_step) = arrays, at, steps
        (visible, more), D = seen, plan[HEAD_SIZE]
        length = visible + more * (height - 1)
        end = (length + lanes - 1) // lanes * lanes
        for t in range(0, end, PANEL):
            if end - t > lanes:
                score(height, PANEL_VECTORS, (q, keys), (q_at, k_at + t * D), (q_step, k_step), D, (scores, t, end))
            else:  # short prompts have no second vector
                score(height, 1, (q, keys), (q_at, k_at + t * D), (q_step, k_step), D, (scores, t, end))
        for i in range(height):
            share(scores, i * end, visible + i * more, end, scale)
        for d in range(0, D, PANEL):
            places = (v_at + d, v_step, o_at + d, o_step, D - d)
            if d + lanes < D:
                weigh(height, PANEL_VECTORS, arrays, places, length, end, plan, scores)
            else:
                weigh(height, 1, arrays, places, length, end, plan, scores)

    return attend_block


@functools.cache
def head_functions(lanes: int, rows: tuple[int, int, int]):
    """(one query of several heads, all queries of a head), each as blocks of the heights in `rows`."""
    (HIGH, MIDDLE, SINGLE), attend_block = rows, block_function(lanes)

    @simd.inline
    def attend_heads(height, arrays, spans, s, head, scale, plan, scores):
        """One query of `height` heads from `head` on."""
        D, slot = plan[HEAD_SIZE], spans[s + SLOT] * plan[HEADS] + head
        row, seen, keys, values = spans[s + ROW], spans[s + FIRST] + 1, plan[KEYS_A_HEAD], plan[VALUES_A_HEAD]
        at = (row * plan[Q_STEP] + head * D, slot * keys, slot * values, row * plan[OUT_STEP] + head * D)
        attend_block(height, arrays, at, (D, keys, values, D), (seen, 0), scale, plan, scores)

    @simd.inline
    def attend_queries(arrays, spans, s, head, scale, plan, scores):
        """All queries of a span for one head."""
        D, causal, slot = plan[HEAD_SIZE], plan[CAUSAL], spans[s + SLOT] * plan[HEADS] + head
        k_at, v_at, i, count = slot * plan[KEYS_A_HEAD], slot * plan[VALUES_A_HEAD], 0, spans[s + COUNT]
        while i < count:
            height = HIGH if count - i >= HIGH else MIDDLE if count - i >= MIDDLE else SINGLE
            row, visible = spans[s + ROW] + i, spans[s + FIRST] + (i + 1 if causal else count)
            at = (row * plan[Q_STEP] + head * D, k_at, v_at, row * plan[OUT_STEP] + head * D)
            steps, seen = (plan[Q_STEP], 0, 0, plan[OUT_STEP]), (visible, causal)
            if height == HIGH:
                attend_block(HIGH, arrays, at, steps, seen, scale, plan, scores)
            elif height == MIDDLE:
                attend_block(MIDDLE, arrays, at, steps, seen, scale, plan, scores)
            else:
                attend_block(SINGLE, arrays, at, steps, seen, scale, plan, scores)
            i += height

    return attend_heads, attend_queries


@functools.cache
def block_kernel(lanes: int, dtype: str, rows: tuple[int, int, int]):
    """The kernel for a vector width, an element type of the cache, and heights of a block."""
    (attend_heads, attend_queries), write_row = head_functions(lanes, rows), row_writer(lanes)
    heads_at_once = GROUP if rows[0] > 1 else 1

    @simd.inline
    def keep_own(arrays, spans, s, head, plan):
        """The key and value of a span's one row, while what `attend` reads next is on its way to the cache."""
        q, keys, values, _ = arrays
        slot = spans[s + SLOT] * plan[HEADS] + head
        row = spans[s + ROW] * plan[Q_STEP] + head * plan[HEAD_SIZE]
        target = (slot * plan[KEYS_A_HEAD], slot * plan[VALUES_A_HEAD])
        write_row(q, q, (row + plan[NEW_K], row + plan[NEW_V]), keys, values, target, spans[s + FIRST], plan)

    @simd.inline
    def attend_group(arrays, spans, s, head, scale, plan, scores):
        """GROUP heads of a span, or those that are left."""
        last = min(head + GROUP, plan[HEADS])
        if spans[s + COUNT] == 1 and plan[NEW_K]:
            for h in range(head, last):
                keep_own(arrays, spans, s, h, plan)
        if spans[s + COUNT] == 1 and last - head == heads_at_once:
            attend_heads(heads_at_once, arrays, spans, s, head, scale, plan, scores)
        else:
            for h in range(head, last):
                attend_queries(arrays, spans, s, h, scale, plan, scores)

    @simd.kernel(attend_signature(dtype), name=f"attention.blocks.{dtype}.{lanes}.{rows[0]}")
    def attend_all(q, keys, values, spans, scale, out, plan, scores):
        """A task is a group of heads of one span."""
        groups = (plan[HEADS] + GROUP - 1) // GROUP
        task = simd.fetch_add(plan, NEXT, 1)
        while task < plan[SPANS] * groups:
            s, head = task // groups * COLUMNS, task % groups * GROUP
            attend_group((q, keys, values, out), spans, s, head, scale, plan, scores)
            task = simd.fetch_add(plan, NEXT, 1)

    return attend_all


@simd.inline
def expect_span(q, spans, s, head, plan):
    """Ask for the rows of q, and of new keys and values, that one head of a span will read."""
    D = plan[HEAD_SIZE]
    for row in range(spans[s + ROW], spans[s + ROW] + spans[s + COUNT]):
        at = row * plan[Q_STEP] + head * D
        for d in range(at, at + D, NUMBERS):
            simd.prefetch(q, d)
            simd.prefetch(q, d + plan[NEW_K])
            simd.prefetch(q, d + plan[NEW_V])


@functools.cache
def prompt_kernel(lanes: int, dtype: str, rows: tuple[int, int, int]):
    """The kernel for spans that keep their rows and may begin as others do: a task is some heads of a run of them."""
    (_, attend_queries), write_span = head_functions(lanes, rows), span_writer(lanes)

    @simd.kernel(attend_signature(dtype), name=f"attention.prompts.{dtype}.{lanes}.{rows[0]}")
    def attend_runs(q, keys, values, spans, scale, out, plan, scores):
        """spans: then the first span of each run, and their end."""
        per, table = plan[HEADS_A_TASK], plan[SPANS] * COLUMNS
        groups = (plan[HEADS] + per - 1) // per
        new, strides = (plan[NEW_K], plan[NEW_V]), (plan[Q_STEP], plan[Q_STEP])
        task = simd.fetch_add(plan, NEXT, 1)
        while task < plan[RUNS] * groups:
            run, head = table + task // groups, task % groups * per
            last = min(head + per, plan[HEADS])
            for s in range(spans[run] * COLUMNS, spans[run + 1] * COLUMNS, COLUMNS):
                for h in range(head, last):
                    if h + 1 < last:
                        expect_span(q, spans, s, h + 1, plan)
                    write_span((q, q), new, strides, (keys, values), spans, s, h, plan)
                    attend_queries((q, keys, values, out), spans, s, h, scale, plan, scores)
            task = simd.fetch_add(plan, NEXT, 1)

    return attend_runs


def attend(q: np.ndarray, cache: Cache, spans: np.ndarray, look: Look, out: np.ndarray, *, rows=None) -> None:
    """The run function of the rungs in vectors; rows: heights of a block."""
    rows = ROWS[cpu().lanes] if rows is None else rows
    starting = (spans[:, COUNT] > 1) | (spans[:, SOURCE] >= 0)
    if look.new is None or not starting.any():
        _attend_each(q, cache, spans, look, out, rows)
        return
    if not starting.all():  # before the others, which may begin as they do
        _attend_each(q, cache, spans[~starting], look, out, rows)
    spans = spans[starting]
    runs = runs_of(spans)
    per = GROUP if len(runs) > 8 * thread_count() else 1
    table, plan = np.append(spans, runs), attend_plan(q, cache, spans, look, out, (len(runs) - 1, per))
    kernel, tasks = prompt_kernel(cpu().lanes, cache.dtype, rows), (len(runs) - 1) * -(-cache.heads // per)
    _launch(kernel, (q, cache, table, look, out), plan, rows, tasks)


def _attend_each(q: np.ndarray, cache: Cache, spans: np.ndarray, look: Look, out: np.ndarray, rows) -> None:
    """Spans in any order; those of one row keep it first, where `look` has it."""
    kernel, tasks = block_kernel(cpu().lanes, cache.dtype, rows), len(spans) * -(-cache.heads // GROUP)
    if len(spans) == 1 and int(spans[0, FIRST] + spans[0, COUNT]) * cache.values.shape[3] * cache.heads <= ALONE:
        tasks = 1  # for `launch`: the calling thread draws them all
    _launch(kernel, (q, cache, spans.reshape(-1), look, out), attend_plan(q, cache, spans, look, out), rows, tasks)


def _launch(kernel, operands: tuple, plan: np.ndarray, rows: tuple[int, int, int], tasks: int) -> None:
    """operands: q, cache, spans, look, out."""
    q, cache, spans, look, out = operands
    arrays = (addresses(q)[0], cache.keys.reshape(-1), cache.values.reshape(-1), spans)
    words = max(rows[0], GROUP) * panels_of(cache.length) * PANEL_VECTORS * cpu().lanes
    launch(kernel, *arrays, np.float32(look.scale), out, plan, tasks=tasks, words=words)


def attend_alone(q: np.ndarray, cache: Cache, spans: np.ndarray, look: Look, out: np.ndarray, *, rows) -> None:
    """`attend` on the calling thread."""
    with threads(1):
        attend(q, cache, spans, look, out, rows=rows)
