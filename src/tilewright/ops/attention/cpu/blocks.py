"""Attention in explicit vectors, for each head: scores = scale * q @ k.T, softmax, weights @ v. The file holds the
blocks of float32, and all kernels that draw tasks; the blocks of bfloat16 are in `words` and `tiles`.

The keys of a head are panels (D, PANEL). A block of ROWS queries scores a panel with one outer product per element of
the head (`block_rank1_rows`): a loaded vector of keys serves ROWS queries, and nothing is summed across lanes. Softmax
runs along the scores in scratch, in L1. Then one outer product per position adds its row of values to ROWS results.
Prompts are limited by multiply-adds, single queries by the bandwidth of the cache. Sums run along d and along positions
in order for every block height, so a query's bits do not depend on the other queries of its block.

The task that attends to new keys and values appends them, span after span. One pass over the batch instead of two is 1
to 10 % faster (Zen 5). Meanwhile the lines of the next head are prefetched.

It is slower than `fused` where vectors are nearly empty: with 4 keys and heads of 4 elements it took 1.2 to 3 times as
long (Emerald Rapids, one thread).
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.attention.cpu.append import row_writers, runs_of, span_writer
from tilewright.ops.attention.cpu.prefetch import NO_SPAN, head_prefetchers, next_keys, panel_prefetcher
from tilewright.ops.attention.cpu.records import (
    MANY,
    Attend,
    Block,
    KeyValue,
    Operands,
    as_words,
    attend_job,
    attend_signature,
    cache_offsets,
    flat,
    query_block,
)
from tilewright.ops.attention.cpu.tiles import STATE, Buffers, tile_queries, tile_scratch
from tilewright.ops.attention.cpu.transposed import SIDE
from tilewright.ops.attention.cpu.words import masker, scratch_words, word_block_function
from tilewright.ops.attention.operands import COLUMNS, PANEL_VECTORS, SPAN, AttendOptions, Cache, panels_of
from tilewright.ops.core.launch import launch, thread_count
from tilewright.ops.gemm.operands import addresses
from tilewright.simd import amx

ALONE = 1 << 17  # elements of values up to which one thread works alone: 20 us, as long as waking another thread
GROUP = 4  # heads of a single query: 8 accumulators hide the latency of an FMA
# by lanes: queries of a block, with two vectors of sums each: 16 of AVX-512's 32 registers, 8 of AVX2's 16, 16 of
# NEON's 32; then the heights of the smaller blocks for the remaining queries
ROWS = {16: (8, 2, 1), 8: (4, 2, 1), 4: (8, 2, 1)}


@functools.cache
def softmax_rows(lanes: int):
    """The inline function that replaces a query's scores by weights."""
    mask = masker(lanes)

    @simd.inline
    def softmax(scores, at, visible, end, scale):
        """scores[at : at + end], whole vectors, = softmax of the first `visible` times scale, then zeros."""
        most, factor, total = mask(scores, at, visible, end), simd.splat(scale, lanes), simd.zeros(lanes)
        for t in range(0, end, lanes):
            weights = simd.exp(simd.multiply(simd.subtract(simd.load(scores, at + t, lanes), most), factor))
            simd.store(scores, at + t, weights)
            total = simd.add(total, weights)
        inverse = simd.splat(np.float32(1) / simd.reduce_add(total), lanes)
        for t in range(0, end, lanes):
            simd.store(scores, at + t, simd.multiply(simd.load(scores, at + t, lanes), inverse))

    return softmax


@functools.cache
def block_function(lanes: int):
    """The inline function that computes a block of float32: scores, softmax, weights times values.

    scores: scratch of `height` rows, each `end` long: the visible keys of the last row, up to a whole vector."""
    PANEL, softmax, prefetch_panel = PANEL_VECTORS * lanes, softmax_rows(lanes), panel_prefetcher(lanes)

    @simd.inline
    def score(height, vectors, arrays, block, t, end, job, scores):
        """Scores of `height` queries and `vectors` vectors of keys, from key t on."""
        at, step, D = block.at, block.step, job.head_size
        keys_at, next_at, values_at = at.keys + t * D, block.next_keys + t * D, at.values + t * job.width
        sums = simd.block_zeros(height, vectors, lanes)
        for d in range(D):
            sums = simd.block_rank1_rows(sums, arrays.q, at.q + d, step.q, arrays.keys, keys_at + d * PANEL, step.keys)
            prefetch_panel(height, arrays, block, next_at + d * PANEL, values_at + d * PANEL)
        simd.block_store(sums, scores, t, end, vectors * lanes)

    @simd.inline
    def weigh(height, vectors, arrays, block, d, end, job, scores):
        """`vectors` vectors of `height` results, from element d on: weights times values."""
        values_at, length = block.at.values + d, block.visible + block.more * (height - 1)
        sums = simd.block_zeros(height, vectors, lanes)
        for t in range(length):
            sums = simd.block_rank1_rows(
                sums, scores, t, end, arrays.values, values_at + t * job.width, block.step.values
            )
        simd.block_store(sums, arrays.out, block.at.out + d, block.step.out, job.head_size - d)

    @simd.inline
    def attend_block(height, arrays, block, scale, job, scores):
        length = block.visible + block.more * (height - 1)
        end = (length + lanes - 1) // lanes * lanes
        for t in range(0, end, PANEL):
            if end - t > lanes:
                score(height, PANEL_VECTORS, arrays, block, t, end, job, scores)
            else:  # short prompts have no second vector
                score(height, 1, arrays, block, t, end, job, scores)
        for i in range(height):
            softmax(scores, i * end, block.visible + i * block.more, end, scale)
        for d in range(0, job.head_size, PANEL):
            if d + lanes < job.head_size:
                weigh(height, PANEL_VECTORS, arrays, block, d, end, job, scores)
            else:
                weigh(height, 1, arrays, block, d, end, job, scores)

    return attend_block


@functools.cache
def head_functions(lanes: int, dtype: str, rows: tuple[int, int, int]):
    """(one query of several heads, all queries of one head): inline functions, in blocks of the heights in `rows`."""
    HIGH, MIDDLE, SINGLE = rows
    attend_block = block_function(lanes) if dtype == "float32" else word_block_function(lanes)

    @simd.inline
    def attend_heads(height, arrays, block, scale, job, scores):
        """One query of `height` heads; block: of the first head."""
        step = Operands(job.head_words, job.head_keys, job.head_values, job.head_size)
        heads = Block(block.at, step, block.visible, 0, block.next_keys)
        attend_block(height, arrays, heads, scale, job, scores)

    @simd.inline
    def attend_queries(arrays, spans, s, head, scale, job, scores):
        i, count = 0, spans[s + SPAN.length]
        while i < count:
            block = query_block(spans, s, head, i, job)
            if count - i >= HIGH:
                attend_block(HIGH, arrays, block, scale, job, scores)
                i += HIGH
            elif count - i >= MIDDLE:
                attend_block(MIDDLE, arrays, block, scale, job, scores)
                i += MIDDLE
            else:
                attend_block(SINGLE, arrays, block, scale, job, scores)
                i += SINGLE

    return attend_heads, attend_queries


@functools.cache
def block_kernel(lanes: int, dtype: str, rows: tuple[int, int, int], out: types.Array = simd.OUTPUT_2D):
    """The kernel for spans of one row, for a vector width, a dtype of the cache, block heights, and a type of out."""
    attend_heads, attend_queries = head_functions(lanes, dtype, rows)
    (write_row, _), (HIGH, _, _) = row_writers(lanes, dtype), rows
    HEADS = GROUP if HIGH > 1 else 1

    @simd.inline
    def append_row(arrays, spans, s, head, job):
        """Append the key and value of a span's one row, while the lines that attention reads next are in flight."""
        at = spans[s + SPAN.row] * job.q_step + head * job.head_words
        target = cache_offsets(spans[s + SPAN.slot], head, job)
        new, new_at = KeyValue(arrays.q, arrays.q), KeyValue(at + job.new_k, at + job.new_v)
        write_row(new, new_at, KeyValue(arrays.keys, arrays.values), target, spans[s + SPAN.first], job)

    @simd.inline
    def attend_group(arrays, spans, s, head, scale, job, scores, next_at):
        """GROUP heads of a span, or the rest of its heads; next_at: see `prefetch.next_keys`."""
        last = min(head + GROUP, job.heads)
        if spans[s + SPAN.length] == 1 and job.new_k:
            for h in range(head, last):
                append_row(arrays, spans, s, h, job)
        if spans[s + SPAN.length] == 1 and last - head == HEADS:
            block = query_block(spans, s, head, 0, job)
            first = Block(block.at, block.step, block.visible, 0, next_at)
            attend_heads(HEADS, arrays, first, scale, job, scores)
        else:
            for h in range(head, last):
                attend_queries(arrays, spans, s, h, scale, job, scores)

    @simd.kernel(attend_signature(out), name=f"attention.blocks.{dtype}.{lanes}.{HIGH}{_suffix(out)}")
    def attend_all(q, keys, values, spans, scale, out, job, tasks, scratch):
        """A task is a group of heads of one span. q, keys, values: flat words. out: (rows, heads * D). spans: flat.
        job: `Attend`. scratch: scores of a block."""
        groups, early = (job.heads + GROUP - 1) // GROUP, job.early
        task = simd.draw(tasks)
        while task >= 0:
            s, head = task // groups * COLUMNS, task % groups * GROUP
            following, next_at = simd.draw(tasks) if early else -1, -1
            if following >= 0:
                next_at = next_keys(spans, s, following // groups * COLUMNS, following % groups * GROUP, job)
            attend_group(Operands(q, keys, values, out), spans, s, head, scale, job, scratch, next_at)
            task = following if early else simd.draw(tasks)

    return attend_all


@functools.cache
def run_function(lanes: int, dtype: str, attend_queries):
    """The inline function that attends for runs of spans, which append their rows and may copy prefixes."""
    write_span, (prefetch_rows, prefetch_results) = span_writer(lanes, dtype), head_prefetchers(lanes, dtype)

    @simd.inline
    def attend_runs(arrays, spans, scale, job, tasks, scratch):
        """A task is some heads of a run. spans: the spans, then the first span of each run, and their end."""
        per, table, early = job.task_heads, job.spans * COLUMNS, job.early
        groups = (job.heads + per - 1) // per
        new, cache = KeyValue(arrays.q, arrays.q), KeyValue(arrays.keys, arrays.values)
        start, step = KeyValue(job.new_k, job.new_v), KeyValue(job.q_step, job.q_step)
        task = simd.draw(tasks)
        while task >= 0:
            following = simd.draw(tasks) if early else -1  # known now, so its first lines can be prefetched
            run, head = table + task // groups, task % groups * per
            last, end = min(head + per, job.heads), spans[run + 1] * COLUMNS
            for s in range(spans[run] * COLUMNS, end, COLUMNS):
                for h in range(head, last):
                    next_s, next_head = NO_SPAN, h + 1
                    if h + 1 < last:
                        next_s = s
                    elif s + COLUMNS < end:
                        next_s, next_head = s + COLUMNS, head
                    elif following >= 0:
                        next_s, next_head = spans[table + following // groups] * COLUMNS, following % groups * per
                    prefetch_rows(arrays.q, spans, next_s, next_head, job)
                    if job.new_k:
                        write_span(new, start, step, cache, spans, s, h, job)
                    prefetch_results(arrays, spans, next_s, next_head, job)
                    attend_queries(arrays, spans, s, h, scale, job, scratch)
            task = following if early else simd.draw(tasks)

    return attend_runs


@functools.cache
def prompt_kernel(lanes: int, dtype: str, rows: tuple[int, int, int], out: types.Array = simd.OUTPUT_2D):
    """The kernel for runs of spans; parameters as in `block_kernel`."""
    attend_runs = run_function(lanes, dtype, head_functions(lanes, dtype, rows)[1])

    @simd.kernel(attend_signature(out), name=f"attention.prompts.{dtype}.{lanes}.{max(rows)}{_suffix(out)}")
    def attend_prompts(q, keys, values, spans, scale, out, job, tasks, scratch):
        attend_runs(Operands(q, keys, values, out), spans, scale, job, tasks, scratch)

    return attend_prompts


@functools.cache
def tile_kernel(out: types.Array, tiles):
    """The kernel for runs of spans in bfloat16 on AMX tiles, `amx.Hardware` or `amx.Emulated`."""
    attend_runs = run_function(amx.WORDS, "bfloat16", tile_queries(tiles, out is simd.ROUNDED_2D))
    configure, release = tiles.configure, tiles.release

    @simd.kernel(attend_signature(out), name=f"attention.tiles.bfloat16.{tiles.__name__}{_suffix(out)}")
    def attend_prompts(q, keys, values, spans, scale, out, job, tasks, scratch):
        state = scratch[:STATE].reshape(9, SIDE, SIDE)
        configure(state, amx.ROWS)
        attend_runs(Operands(q, keys, values, out), spans, scale, job, tasks, Buffers(scratch, state))
        release(state)

    return attend_prompts


def attend_in_tiles(q: np.ndarray, cache: Cache, spans: np.ndarray, options: AttendOptions, out: np.ndarray) -> None:
    """As `attend`, with spans of several rows on this CPU's AMX tiles."""
    attend(q, cache, spans, options, out, tiles=amx.Hardware)


def attend(
    q: np.ndarray, cache: Cache, spans: np.ndarray, options: AttendOptions, out: np.ndarray, *, rows=None, tiles=None
) -> None:
    """Attention of q to the cache, written to out; see `ladder` for the arguments.

    rows: heights of a block of queries; None: those of this CPU. tiles: for spans of several rows, see `tile_kernel`.
    """
    rows = ROWS[cpu().lanes] if rows is None else rows
    prompts = (spans[:, SPAN.length] > 1) | (spans[:, SPAN.source] >= 0)
    if not prompts.all():  # these go first: prompts may copy from them
        # the spans themselves if they are all of this kind: a recorded launch reads their next positions from them
        _attend_single(q, cache, spans[~prompts] if prompts.any() else spans, options, out, rows)
        if not prompts.any():
            return
    spans = spans[prompts]
    runs = runs_of(spans)
    many = len(runs) > MANY * thread_count()
    per = GROUP if many else 1
    table, job = np.append(spans, runs), attend_job(q, cache, spans, options, out, per, many)
    out_type, tasks = _type_of(out), (len(runs) - 1) * -(-cache.heads // per)
    if tiles is None:
        kernel, words = prompt_kernel(cpu().lanes, cache.dtype, rows, out_type), _scratch(cache, rows)
    else:
        kernel, words = tile_kernel(out_type, tiles), tile_scratch(cache.length, cache.D)
    _launch(kernel, q, cache, table, options, out, job, tasks=tasks, words=words)


def _attend_single(q: np.ndarray, cache: Cache, spans: np.ndarray, options: AttendOptions, out: np.ndarray, rows):
    """Spans of one row, in any order. Each appends its row first if `options` has new rows."""
    kernel, tasks = block_kernel(cpu().lanes, cache.dtype, rows, _type_of(out)), len(spans) * -(-cache.heads // GROUP)
    alone = (
        len(spans) == 1
        and int(spans[0, SPAN.first] + spans[0, SPAN.length]) * cache.values.shape[3] * cache.heads <= ALONE
    )
    job = attend_job(q, cache, spans, options, out, early=not alone and tasks > MANY * thread_count())
    words = _scratch(cache, rows)
    _launch(kernel, q, cache, spans.reshape(-1), options, out, job, tasks=tasks, words=words, alone=alone)


def _suffix(out: types.Array) -> str:
    """The end of a kernel's name; the first dtype in it is that of the cache."""
    return ".rounded" if out is simd.ROUNDED_2D else ""


def _type_of(out: np.ndarray) -> types.Array:
    return simd.OUTPUT_2D if out.dtype == np.float32 else simd.ROUNDED_2D


def _scratch(cache: Cache, rows: tuple[int, int, int]) -> int:
    """Words of scratch of the largest block."""
    height, length = max(*rows, GROUP), panels_of(cache.length) * PANEL_VECTORS * cpu().lanes
    return height * length if cache.dtype == "float32" else scratch_words(height, length, cache.D, cpu().lanes)


def _launch(kernel, q, cache: Cache, spans: np.ndarray, options: AttendOptions, out, job: Attend, **tasks) -> None:
    arrays = (addresses(as_words(q))[0], *flat(cache), spans, np.float32(options.scale))
    launch(kernel, *arrays, out if out.dtype == np.float32 else out.view(np.uint16), job, **tasks)
