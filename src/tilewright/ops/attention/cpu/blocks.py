"""Attention in explicit vectors: queries of one head against panels of keys, their scores in L1, then rows of values.
Here are the blocks of float32, those of `words` and `tiles` are in their files, and the kernels that draw them all.

A block of ROWS queries scores a panel of keys with one outer product a number of the head (`block_rank1_rows`), so that
a loaded vector of keys feeds ROWS queries and nothing is summed across lanes. Softmax runs along the scores in scratch.
Then one outer product a position adds its row of values to ROWS results. Sums run along d and along positions in
order, whatever the block, so a query's bits do not depend on which others share its block.

New keys and values are kept by the task that looks at them, span after span: one pass over the batch instead of two,
1 to 10 % faster (Zen 5). Meanwhile the next head's lines are on their way.

It loses to `fused` where vectors stay nearly empty: on 4 keys of heads of 4 numbers it took 1.2 to 3 times as long
(Emerald Rapids, one thread).
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.attention.cpu.append import row_writer, runs_of, span_writer, word_row_writer
from tilewright.ops.attention.cpu.expect import NOBODY, NOTHING, asking, expecting, next_keys
from tilewright.ops.attention.cpu.parameters import (
    MANY,
    Attend,
    attend_job,
    attend_signature,
    elements,
    flat,
    numbers_of,
)
from tilewright.ops.attention.cpu.tiles import STATE, tile_queries, tile_scratch
from tilewright.ops.attention.cpu.turned import SIDE
from tilewright.ops.attention.cpu.words import hider, scratch_words, word_block_function
from tilewright.ops.attention.operands import COLUMNS, PANEL_VECTORS, SPAN, Cache, Look, panels_of
from tilewright.ops.core.launch import launch, thread_count
from tilewright.ops.gemm.operands import addresses
from tilewright.simd import amx

ALONE = 1 << 17  # numbers of values up to which one thread does all: 20 microseconds, as long as waking another
GROUP = 4  # heads of a lone query: 8 accumulators hide the latency of an FMA
# lanes: queries in a block, two vectors of sums each: 16 of AVX-512's 32 registers, 8 of AVX2's 16, 16 of NEON's 32;
# then those of the smaller blocks that take what is left over
ROWS = {16: (8, 2, 1), 8: (4, 2, 1), 4: (8, 2, 1)}


@functools.cache
def softmax_rows(lanes: int):
    """The inline function that turns a query's scores into shares."""
    hide = hider(lanes)

    @simd.inline
    def share(scores, at, visible, end, scale):
        """scores.flat[at : at + end], whole vectors, = softmax of the first `visible` times scale, then zeros."""
        most, factor, total = hide(scores, at, visible, end), simd.splat(scale, lanes), simd.zeros(lanes)
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
    PANEL, share, ask = PANEL_VECTORS * lanes, softmax_rows(lanes), asking(lanes)

    @simd.inline
    def score(height, vectors, arrays, at, steps, D, target, ahead):
        """`height` queries against `vectors` vectors of a panel of keys; target: (scores, where, their row stride);
        ahead: as `expect.asking`."""
        (q, keys), (q_at, k_at), (q_step, k_step), (scores, to, stride) = arrays, at, steps, target
        block = simd.block_zeros(height, vectors, lanes)
        for d in range(D):
            block = simd.block_rank1_rows(block, q, q_at + d, q_step, keys, k_at + d * PANEL, k_step)
            ask(height, ahead, d)
        simd.block_store(block, scores, to, stride, vectors * lanes)

    @simd.inline
    def weigh(height, vectors, arrays, places, length, end, job, scores):
        """`vectors` vectors of `height` results = shares times values. places: (of values, their stride between rows of
        the block, of the result, the stride there, numbers to write)."""
        (_, _, values, out), (v_at, v_step, o_at, o_step, left), width = arrays, places, job.width
        sums = simd.block_zeros(height, vectors, lanes)
        for t in range(length):
            sums = simd.block_rank1_rows(sums, scores, t, end, values, v_at + t * width, v_step)
        simd.block_store(sums, out, o_at, o_step, left)

    @simd.inline
    def attend_block(height, arrays, at, steps, seen, scale, job, scores):
        """A block of `height` rows. at: of the first row in (q, keys, values, out), steps: from row to row there; seen:
        (keys visible to the first row, how many more to each next one, see `expect.next_keys`)."""
        (q, keys, values, _), (q_at, k_at, v_at, o_at), (q_step, k_step, v_step, o_step) = arrays, at, steps
        (visible, more, coming), D = seen, job.head_size
        length = visible + more * (height - 1)
        end = (length + lanes - 1) // lanes * lanes
        for t in range(0, end, PANEL):
            places, target = (q_at, k_at + t * D), (scores, t, end)
            ahead = (coming[0], keys, coming[1] + t * D, k_step, values, v_at + t * job.width, v_step)
            if end - t > lanes:
                score(height, PANEL_VECTORS, (q, keys), places, (q_step, k_step), D, target, ahead)
            else:  # short prompts have no second vector
                score(height, 1, (q, keys), places, (q_step, k_step), D, target, ahead)
        for i in range(height):
            share(scores, i * end, visible + i * more, end, scale)
        for d in range(0, D, PANEL):
            places = (v_at + d, v_step, o_at + d, o_step, D - d)
            if d + lanes < D:
                weigh(height, PANEL_VECTORS, arrays, places, length, end, job, scores)
            else:
                weigh(height, 1, arrays, places, length, end, job, scores)

    return attend_block


@functools.cache
def head_functions(lanes: int, dtype: str, rows: tuple[int, int, int]):
    """(one query of several heads, all queries of a head), each as blocks of the heights in `rows`."""
    (HIGH, MIDDLE, SINGLE), NUMBERS = rows, numbers_of(dtype)
    attend_block = block_function(lanes) if dtype == "float32" else word_block_function(lanes)

    @simd.inline
    def attend_heads(height, arrays, spans, first, scale, job, scores, coming):
        """One query of `height` heads; first: (its span, the first of them); coming: see `expect.next_keys`."""
        (s, head), D = first, job.head_size
        slot = spans[s + SPAN.slot] * job.heads + head
        row, seen, keys, values = spans[s + SPAN.row], spans[s + SPAN.first] + 1, job.head_keys, job.head_values
        at = (row * job.q_step + head * (D // NUMBERS), slot * keys, slot * values, row * job.out_step + head * D)
        attend_block(height, arrays, at, (D // NUMBERS, keys, values, D), (seen, 0, coming), scale, job, scores)

    @simd.inline
    def attend_queries(arrays, spans, s, head, scale, job, scores):
        """All queries of a span for one head."""
        D, causal, slot = job.head_size, job.causal, spans[s + SPAN.slot] * job.heads + head
        k_at, v_at, i, count = slot * job.head_keys, slot * job.head_values, 0, spans[s + SPAN.length]
        while i < count:
            height = HIGH if count - i >= HIGH else MIDDLE if count - i >= MIDDLE else SINGLE
            row, visible = spans[s + SPAN.row] + i, spans[s + SPAN.first] + (i + 1 if causal else count)
            at = (row * job.q_step + head * (D // NUMBERS), k_at, v_at, row * job.out_step + head * D)
            steps, seen = (job.q_step, 0, 0, job.out_step), (visible, causal, NOTHING)
            if height == HIGH:
                attend_block(HIGH, arrays, at, steps, seen, scale, job, scores)
            elif height == MIDDLE:
                attend_block(MIDDLE, arrays, at, steps, seen, scale, job, scores)
            else:
                attend_block(SINGLE, arrays, at, steps, seen, scale, job, scores)
            i += height

    return attend_heads, attend_queries


@functools.cache
def block_kernel(lanes: int, dtype: str, rows: tuple[int, int, int], out: types.Array = simd.OUTPUT_2D):
    """The kernel for a vector width, an element type of the cache, heights of a block, and a type of the results."""
    attend_heads, attend_queries = head_functions(lanes, dtype, rows)
    write_row = row_writer(lanes) if dtype == "float32" else word_row_writer(lanes)
    NUMBERS, heads_at_once = numbers_of(dtype), GROUP if rows[0] > 1 else 1

    @simd.inline
    def keep_own(arrays, spans, s, head, job):
        """The key and value of a span's one row, while what `attend` reads next is on its way to the cache."""
        q, keys, values, _ = arrays
        slot = spans[s + SPAN.slot] * job.heads + head
        row = spans[s + SPAN.row] * job.q_step + head * (job.head_size // NUMBERS)
        target = (slot * job.head_keys, slot * job.head_values)
        write_row(q, q, (row + job.new_k, row + job.new_v), keys, values, target, spans[s + SPAN.first], job)

    @simd.inline
    def attend_group(arrays, spans, first, scale, job, scores, coming):
        """GROUP heads of a span, or those that are left; first, coming: see `attend_heads`."""
        s, head = first
        last = min(head + GROUP, job.heads)
        if spans[s + SPAN.length] == 1 and job.new_k:
            for h in range(head, last):
                keep_own(arrays, spans, s, h, job)
        if spans[s + SPAN.length] == 1 and last - head == heads_at_once:
            attend_heads(heads_at_once, arrays, spans, first, scale, job, scores, coming)
        else:
            for h in range(head, last):
                attend_queries(arrays, spans, s, h, scale, job, scores)

    @simd.kernel(attend_signature(out), name=f"attention.blocks.{dtype}.{lanes}.{rows[0]}{_form(out)}")
    def attend_all(q, keys, values, spans, scale, out, job, tasks, scratch):
        """A task is a group of heads of one span."""
        groups, early = (job.heads + GROUP - 1) // GROUP, job.early
        task = simd.draw(tasks)
        while task >= 0:
            first = (task // groups * COLUMNS, task % groups * GROUP)
            following = simd.draw(tasks) if early else -1
            coming = NOTHING
            if following >= 0:
                other = (following // groups * COLUMNS, following % groups * GROUP)
                coming = next_keys(job.head_size // NUMBERS, spans, first[0], other, job)
            attend_group((q, keys, values, out), spans, first, scale, job, scratch, coming)
            task = following if early else simd.draw(tasks)

    return attend_all


@functools.cache
def run_function(lanes: int, dtype: str, attend_queries):
    """The inline function that walks over runs of spans, which keep their rows and may begin as others do."""
    write_span, (expect_rows, expect_results) = span_writer(lanes, dtype), expecting(lanes, dtype)

    @simd.inline
    def attend_runs(arrays, spans, scale, job, tasks, scratch):
        """spans: then the first span of each run, and their end. A task is some heads of a run."""
        per, table = job.task_heads, job.spans * COLUMNS
        groups = (job.heads + per - 1) // per
        new, strides = (job.new_k, job.new_v), (job.q_step, job.q_step)
        (q, keys, values, _), early = arrays, job.early
        task = simd.draw(tasks)
        while task >= 0:
            ahead = simd.draw(tasks) if early else -1  # known now, so its first lines can be prefetched
            run, head = table + task // groups, task % groups * per
            last, end = min(head + per, job.heads), spans[run + 1] * COLUMNS
            for s in range(spans[run] * COLUMNS, end, COLUMNS):
                for h in range(head, last):
                    other, next_head = NOBODY, h + 1
                    if h + 1 < last:
                        other = s
                    elif s + COLUMNS < end:
                        other, next_head = s + COLUMNS, head
                    elif ahead >= 0:
                        other, next_head = spans[table + ahead // groups] * COLUMNS, ahead % groups * per
                    expect_rows(q, spans, other, next_head, job)
                    if job.new_k:
                        write_span((q, q), new, strides, (keys, values), spans, s, h, job)
                    expect_results(arrays, spans, other, next_head, job)
                    attend_queries(arrays, spans, s, h, scale, job, scratch)
            task = ahead if early else simd.draw(tasks)

    return attend_runs


@functools.cache
def prompt_kernel(lanes: int, dtype: str, rows: tuple[int, int, int], out: types.Array = simd.OUTPUT_2D):
    """The kernel for runs of spans; see `block_kernel`."""
    attend_runs = run_function(lanes, dtype, head_functions(lanes, dtype, rows)[1])

    @simd.kernel(attend_signature(out), name=f"attention.prompts.{dtype}.{lanes}.{rows[0]}{_form(out)}")
    def attend_prompts(q, keys, values, spans, scale, out, job, tasks, scratch):
        attend_runs((q, keys, values, out), spans, scale, job, tasks, scratch)

    return attend_prompts


@functools.cache
def tile_kernel(out: types.Array, tiles):
    """The kernel for runs of spans of words on AMX tiles, `amx.Hardware` or `amx.Emulated`."""
    attend_runs = run_function(amx.WORDS, "bfloat16", tile_queries(tiles, out is simd.ROUNDED_2D))
    configure, release = tiles.configure, tiles.release

    @simd.kernel(attend_signature(out), name=f"attention.tiles.bfloat16.{tiles.__name__}{_form(out)}")
    def attend_prompts(q, keys, values, spans, scale, out, job, tasks, scratch):
        state = scratch[:STATE].reshape(9, SIDE, SIDE)
        configure(state, amx.ROWS)
        attend_runs((q, keys, values, out), spans, scale, job, tasks, (scratch, state))
        release(state)

    return attend_prompts


def attend_in_tiles(q: np.ndarray, cache: Cache, spans: np.ndarray, look: Look, out: np.ndarray) -> None:
    """As `attend`, spans of several rows on this CPU's AMX tiles."""
    attend(q, cache, spans, look, out, tiles=amx.Hardware)


def attend(q: np.ndarray, cache: Cache, spans: np.ndarray, look: Look, out: np.ndarray, *, rows=None, tiles=None):
    """Attention of q to the cache, written to out; see `ladder` for the arguments.

    rows: heights of a block of queries; None for those of this CPU. tiles: where spans of several rows run.
    """
    rows = ROWS[cpu().lanes] if rows is None else rows
    starting = (spans[:, SPAN.length] > 1) | (spans[:, SPAN.source] >= 0)
    if not starting.all():  # before the others, which may begin as they do
        _attend_each(q, cache, spans[~starting], look, out, rows)
        if not starting.any():
            return
    spans = spans[starting]
    runs = runs_of(spans)
    many = len(runs) > MANY * thread_count()
    per = GROUP if many else 1
    table, job = np.append(spans, runs), attend_job(q, cache, spans, look, out, per, many)
    kind, tasks = _type_of(out), (len(runs) - 1) * -(-cache.heads // per)
    if tiles is None:
        kernel, words = prompt_kernel(cpu().lanes, cache.dtype, rows, kind), _scratch(cache, rows)
    else:
        kernel, words = tile_kernel(kind, tiles), tile_scratch(cache.length, cache.D)
    _launch(kernel, (q, cache, table, look, out), job, tasks=tasks, words=words)


def _attend_each(q: np.ndarray, cache: Cache, spans: np.ndarray, look: Look, out: np.ndarray, rows) -> None:
    """Spans of one row in any order; they keep it first, where `look` has it."""
    kernel, tasks = block_kernel(cpu().lanes, cache.dtype, rows, _type_of(out)), len(spans) * -(-cache.heads // GROUP)
    alone = (
        len(spans) == 1
        and int(spans[0, SPAN.first] + spans[0, SPAN.length]) * cache.values.shape[3] * cache.heads <= ALONE
    )
    job = attend_job(q, cache, spans, look, out, early=not alone and tasks > MANY * thread_count())
    operands = (q, cache, spans.reshape(-1), look, out)
    _launch(kernel, operands, job, tasks=tasks, words=_scratch(cache, rows), alone=alone)


def _form(out: types.Array) -> str:
    """The end of a kernel's name; the first dtype in it is that of the cache."""
    return ".rounded" if out is simd.ROUNDED_2D else ""


def _type_of(out: np.ndarray) -> types.Array:
    return simd.OUTPUT_2D if out.dtype == np.float32 else simd.ROUNDED_2D


def _scratch(cache: Cache, rows: tuple[int, int, int]) -> int:
    """Numbers of scratch that blocks take."""
    height, length = max(rows[0], GROUP), panels_of(cache.length) * PANEL_VECTORS * cpu().lanes
    return height * length if cache.dtype == "float32" else scratch_words(height, length, cache.D, cpu().lanes)


def _launch(kernel, operands: tuple, job: Attend, **options) -> None:
    """operands: q, cache, spans, look, out."""
    q, cache, spans, look, out = operands
    arrays = (addresses(elements(q))[0], *flat(cache), spans, np.float32(look.scale))
    out = out if out.dtype == np.float32 else out.view(np.uint16)
    launch(kernel, *arrays, out, job, **options)
