"""Attention on words of two bfloat16: tiles and vectors agree bit for bit; rows are bfloat16, or are rounded."""

import numpy as np
import pytest

from random_problems import TILE_LANES, slow_to_compile, vectors_of
from tilewright.errors import UsageError
from tilewright.ops.attention import Cache, append, attend, checked_spans, span
from tilewright.ops.attention.cpu import blocks
from tilewright.ops.attention.operands import AttendOptions
from tilewright.ops.core.arrays import BFLOAT16
from tilewright.ops.core.launch import threads
from tilewright.simd import amx

# prompts of many lengths, a single position after a copied prefix, and a prompt that shares a prefix of this batch
SPANS = [
    span(0, 0, 16, 0), span(1, 0, 5, 16), span(2, 0, 33, 21), span(3, 17, 1, 54, 2), span(4, 3, 20, 55, 2),
    span(5, 0, 70, 75), span(6, 0, 1, 145),
]  # fmt: skip
ROWS, LENGTH = 146, 90


def qkv_rows(rng, rows: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values, bfloat16 (rows, width), side by side."""
    qkv = rng.standard_normal((rows, 3 * width)).astype(BFLOAT16)
    return qkv[:, :width], qkv[:, width : 2 * width], qkv[:, 2 * width :]


def poisoned(heads: int, D: int) -> Cache:
    """A cache full of NaN."""
    cache = Cache.empty(9, heads, LENGTH, D, "bfloat16")
    for part in (cache.keys, cache.values):
        part.fill(0x7FFF7FFF)
    return cache


@pytest.mark.parametrize(("D", "heads", "kind", "new", "causal"), [
    (32, 3, BFLOAT16, True, True), (64, 2, BFLOAT16, True, True), (64, 1, BFLOAT16, False, False),
    pytest.param(96, 1, np.float32, False, True, marks=pytest.mark.long),  # half a minute to compile
])  # fmt: skip
@slow_to_compile
@vectors_of(TILE_LANES)
def test_tiles_have_the_bits_of_vectors(D, heads, kind, new, causal, rng):
    q, k, v = qkv_rows(rng, ROWS, heads * D)
    results = []
    for tiles in (None, amx.Hardware if amx.available() else amx.Emulated):
        cache, out = poisoned(heads, D), np.zeros((ROWS, heads * D), kind)
        if not new:
            append(k, v, cache, SPANS)
        options = AttendOptions(D**-0.5, causal, (k, v) if new else None)
        with threads(2):
            blocks.attend(q, cache, checked_spans(SPANS, cache, ROWS).array, options, out, tiles=tiles)
        results.append(out.astype(np.float32))
    assert np.isfinite(results[0]).all() and np.abs(results[0]).min(axis=1).max() > 0
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("D", [6, 7])
def test_float32_rows_are_rounded_and_bfloat16_rows_may_lie_anywhere(D, rng):
    """Heads of an odd width, rows that start within a word: the same elements, cached and computed."""
    heads = 3
    rows = [x.astype(np.float32) for x in qkv_rows(rng, ROWS, heads * D)]
    lower = [x * np.float32(1 + 2**-10) for x in rows]  # rounds to the same bfloat16
    memory = np.zeros((3, ROWS, heads * D + 3), BFLOAT16)
    memory[:, :, 1:-2] = rows
    results = []
    for q, k, v in (lower, [x[:, 1:-2] for x in memory]):
        cache = Cache.empty(9, heads, LENGTH, D, "bfloat16")
        found = attend(q, cache, SPANS, new=(k, v))
        results.append([found, *(x for head in range(heads) for x in cache.plain(4, head, 23))])
    for one, other in zip(*results, strict=True):
        assert one.dtype == np.float32 and one.tobytes() == other.tobytes()
    rounded = np.zeros((ROWS, heads * D), BFLOAT16)
    assert attend(q, cache, SPANS, out=rounded) is rounded
    assert rounded.tobytes() == results[0][0].astype(BFLOAT16).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_positions_of_one_slot_keep_their_neighbours(dtype, rng):
    """Written again, out of order, by two spans of one call, and from rows that are all the same memory: two positions
    of a value share a word."""
    _, k, v = (x.astype(np.float32 if dtype == "float32" else BFLOAT16) for x in qkv_rows(rng, 9, 16))
    wanted = v.astype(np.float32)[:, 8:]
    for steps in ([(0, 9), (4, 5)], [(3, 4), (2, 3), (0, 9), (6, 7)], [(5, 9), (0, 5)]):
        cache = Cache.empty(1, 2, 9, 8, dtype)
        for first, end in steps:
            append(k, v, cache, [span(0, first, end - first, first)])
        assert np.array_equal(cache.plain(0, 1, 9)[1], wanted), steps
    cache = Cache.empty(1, 2, 9, 8, dtype)
    append(k, v, cache, [span(0, 5, 4, 5), span(0, 0, 5, 0)])
    assert np.array_equal(cache.plain(0, 1, 9)[1], wanted)
    append(k, np.broadcast_to(v[3], v.shape), cache, [span(0, 0, 9, 0)])
    assert np.array_equal(cache.plain(0, 1, 9)[1], np.broadcast_to(wanted[3], wanted.shape))


def test_rows_of_two_dtypes_are_refused(rng):
    q, k, v = qkv_rows(rng, ROWS, 16)
    cache = Cache.empty(9, 2, LENGTH, 8, "bfloat16")
    with pytest.raises(UsageError, match="q, new keys and new values differ in dtype or row stride"):
        attend(q.astype(np.float32), cache, SPANS, new=(k, v))
    with pytest.raises(UsageError, match=r"attention: q is bfloat16 .*; float32 .* is wanted"):
        attend(q, Cache.empty(9, 2, LENGTH, 8), SPANS)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_new_keys_and_values_may_lie_before_the_queries_in_memory(rng, order):
    """Their offsets from q are negative then. order: where in one buffer q, k and v are."""
    heads, D = 2, 16
    rows = qkv_rows(rng, ROWS, heads * D)
    memory = np.empty((3, ROWS, heads * D), BFLOAT16)
    moved = [memory[at] for at in order]
    for target, source in zip(moved, rows, strict=True):
        target[...] = source
    results = []
    for (q, k, v), together in ((rows, False), (moved, True)):
        cache = poisoned(heads, D)
        if not together:
            append(k, v, cache, SPANS)
        found = attend(q, cache, SPANS, new=(k, v) if together else None)
        results.append([found, *(x for head in range(heads) for x in cache.plain(5, head, 70))])
    for one, other in zip(*results, strict=True):
        assert one.tobytes() == other.tobytes()
