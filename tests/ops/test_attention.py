"""Attention with a cache: sequences of any lengths, shared prefixes, positions in one call or one by one."""

from itertools import pairwise

import numpy as np
import pytest

from compare import compare
from tilewright.bench.sizes import attention as spec
from tilewright.errors import UsageError
from tilewright.ops.attention import (
    Cache,
    append,
    append_and_attend,
    attend,
    attention,
    bytes_a_sequence,
    ladder,
    reference,
    span,
)
from tilewright.ops.attention.operands import panel
from tilewright.ops.core.arrays import rounded
from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import threads

H, D = 3, 20
RUNGS = [(name, dtype) for name in ladder.rungs for dtype in ("float32", "bfloat16")
         if not ladder.rungs[name].refuses(spec.Problem(D, dtype))]  # fmt: skip


def rows(rng, count: int, scale: float = 1.0) -> tuple[np.ndarray, ...]:
    """q, k, v float32 (count, H * D)."""
    return tuple(scale * rng.standard_normal((count, H * D), dtype=np.float32) for _ in range(3))


def at_once(q, k, v, dtype: str, **options) -> np.ndarray:
    """One sequence alone in a cache of its own length: (T, H * D)."""
    cache = Cache.empty(1, H, len(q), D, dtype)
    append(k, v, cache, [span(0, 0, len(q), 0)])
    return attend(q, cache, [span(0, 0, len(q), 0)], **options)


def truth(q, k, v, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """(the reference's answer, its bound), float64 (T, H * D)."""
    case = spec.Case(1, H, len(q), len(q), D, dtype=dtype)
    cache = Cache.empty(1, H, len(q), D, dtype)
    append(k, v, cache, [span(0, 0, len(q), 0)])
    cached = [np.stack(each)[None] for each in zip(*(cache.plain(0, h, len(q)) for h in range(H)), strict=True)]
    query = q if dtype == "float32" else rounded(q)
    inputs = {"q": query.reshape(1, -1, H, D).swapaxes(1, 2), "k": cached[0], "v": cached[1], "causal": True}
    wanted = reference.attention(**inputs)
    flat = [x.swapaxes(1, 2).reshape(len(q), -1) for x in (wanted, spec.bound(case, inputs, wanted, c=2))]
    return flat[0], np.broadcast_to(flat[1], flat[0].shape)


@pytest.mark.parametrize(("name", "dtype"), RUNGS)
def test_sequences_of_any_lengths(name, dtype, rng):
    """Side by side in one batch, in slots out of order: each is right, and has the bits that it has alone."""
    lengths = [1, panel() - 1, panel(), panel() + 1, 5, 2 * panel() + 9]
    q, k, v = rows(rng, sum(lengths))
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    cache = Cache.empty(9, H, max(lengths) + 30, D, dtype)
    spans = [span(8 - i, 0, n, at) for i, (n, at) in enumerate(zip(lengths, starts, strict=True))]
    with using(attention=name), threads(2):
        append(k, v, cache, spans)
        found = attend(q, cache, spans[::-1])
        for n, at in zip(lengths, starts, strict=True):
            own = [x[at : at + n] for x in (q, k, v)]
            wanted, bound = truth(*own, dtype)
            compare(found[at : at + n], wanted, bound)
            assert found[at : at + n].tobytes() == at_once(*own, dtype).tobytes()


@pytest.mark.parametrize(("name", "dtype"), [rung for rung in RUNGS if rung[0] != "cpu.unfused"])
def test_decode_after_prefill_is_prefill_of_the_whole(name, dtype, rng):
    """However a text is cut into steps, of one or of many positions, its bits are the same; unfused says it differs."""
    T = 2 * panel() + 3
    q, k, v = rows(rng, T)
    with using(attention=name):
        wanted = at_once(q, k, v, dtype)
        for cuts in ([*range(T + 1)], [0, 7, T], [0, 1, panel(), panel() + 1, T - 1, T]):
            cache, found = Cache.empty(2, H, T + 5, D, dtype), np.full_like(q, np.nan)
            for first, end in pairwise(cuts):
                spans = [span(1, first, end - first, first)]
                append(k, v, cache, spans)
                attend(q, cache, spans, out=found)
            assert found.tobytes() == wanted.tobytes(), cuts


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shared", [1, 5, panel() - 1, panel(), panel() + 3])
def test_a_prefix_copied_from_another_slot(dtype, shared, rng):
    """A chain: the second shares a prefix with the first, the third with the second, all in one call."""
    T = panel() + 6
    q, k, v = (np.concatenate([x, x, x]) for x in rows(rng, T))
    for x in (q, k, v):
        x[T + shared : 2 * T] += 1
        x[2 * T + shared - 1 :] -= 2
    alone = [at_once(*(x[i * T : i * T + T] for x in (q, k, v)), dtype) for i in range(3)]
    spans = [span(2, 0, T, 0), span(0, shared, T - shared, T + shared, source=2)]
    spans += [span(3, shared - 1, T - shared + 1, 2 * T + shared - 1, source=0 if shared > 1 else -1)]
    cache, found = Cache.empty(4, H, T, D, dtype), np.zeros_like(q)
    append(k, v, cache, spans)
    attend(q, cache, spans, out=found)
    assert found[:T].tobytes() == alone[0].tobytes()
    assert found[T + shared : 2 * T].tobytes() == alone[1][shared:].tobytes()
    assert found[2 * T + shared - 1 :].tobytes() == alone[2][shared - 1 :].tobytes()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("name", "dtype"), RUNGS)
def test_keys_appended_by_the_kernel_that_attends(name, dtype, count, rng):
    """Prompts with shared prefixes, chains of them, and next positions in one batch: as after `append`, bit for bit."""
    P, heads = panel(), 6
    lengths = [1, P + 3, P + 3, 4, 2 * P, 2 * P + 5, 9, 1]
    sources = [-1, -1, 1, -1, 2, 4, 1, 0]  # the span whose prefix each one shares
    shared = [7, 0, P + 1, 0, P, P + 2, 2, 8]
    starts = np.cumsum([0, *lengths]).tolist()
    spans = [
        span(7 - i, shared[i], lengths[i], starts[i], source=-1 if sources[i] < 0 else 7 - sources[i])
        for i in range(len(lengths))
    ]
    qkv = rng.standard_normal((starts[-1], 3 * heads * D), dtype=np.float32)
    q, k, v = (qkv[:, i * heads * D : (i + 1) * heads * D] for i in range(3))
    before = rows(rng, 7)
    results = []
    with using(attention=name), threads(count):
        for together in (False, True):
            cache = Cache.empty(8, heads, 4 * P, D, dtype)
            append(*(np.hstack([x, x]) for x in before[1:]), cache, [span(7, 0, 7, 0)])
            if not together:
                append(k, v, cache, spans)
            found = attend(q, cache, spans, new=(k, v) if together else None)
            cached = [cache.plain(7 - i, h, shared[i] + lengths[i]) for i in range(8) for h in range(heads)]
            results.append([found, *(x for pair in cached for x in pair)])
    for one, other in zip(*results, strict=True):
        assert one.tobytes() == other.tobytes()


def test_runs_hold_what_depends_on_each_other():
    from tilewright.ops.attention.cpu.append import runs_of

    def runs(*pairs):
        return runs_of(np.array([span(slot, 4, 2, 0, source) for slot, source in pairs], np.int64)).tolist()

    assert runs((0, -1), (1, -1), (2, -1)) == [0, 1, 2, 3]
    assert runs((0, -1), (1, 0), (2, 1), (3, -1)) == [0, 3, 4]
    assert runs((0, -1), (1, -1), (2, 0), (3, -1)) == [0, 3, 4]
    assert runs((0, 2), (1, -1), (2, -1)) == [0, 3]
    assert runs((0, 9), (1, 9)) == [0, 1, 2]
    assert runs((0, -1), (1, -1), (0, -1), (2, -1)) == [0, 3, 4]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_decoding_with_slots_and_positions(dtype, rng):
    """`append_and_attend` has the bits of spans of one row; a row of slot -1 gets zeros."""
    q, k, v = rows(rng, 12)
    slots, positions = np.array([2, -1, 0], np.int32), np.array([4, 9, 5], np.int32)
    results = []
    for decode in (True, False):
        cache = Cache.empty(3, H, 8, D, dtype)
        append(k, v, cache, [span(0, 0, 5, 0), span(2, 0, 4, 5)])
        last = [x[9:] for x in (q, k, v)]
        if decode:
            found = append_and_attend(*last, cache, slots, positions, longest=6)
        else:
            found = np.zeros_like(last[0])
            attend(last[0], cache, [span(2, 4, 1, 0), span(0, 5, 1, 2)], new=last[1:], out=found)
        results.append(found.tobytes())
    assert results[0] == results[1]
    with pytest.raises(UsageError, match="longest is 9"):
        append_and_attend(*last, cache, slots, positions, longest=9)


def test_rows_that_no_span_names_are_left_alone(rng):
    q, k, v = rows(rng, 9)
    cache, out = Cache.empty(1, H, 9, D), np.full((9, H * D), 7, np.float32)
    append(k, v, cache, [span(0, 0, 9, 0)])
    assert attend(q, cache, [span(0, 3, 2, 3)], out=out) is out
    assert (out[[0, 1, 2, 5, 6, 7, 8]] == 7).all() and (out[3:5] != 7).all()
    assert attend(q, cache, np.zeros((0, 5), np.int64), out=out) is out
    append(k, v, cache, [])


def test_queries_and_keys_may_be_columns_of_one_array(rng):
    q, k, v = rows(rng, 30)
    wide = np.concatenate([q, k, v], axis=1)
    found = at_once(*np.split(wide, 3, axis=1), "float32")
    assert found.tobytes() == at_once(q, k, v, "float32").tobytes()


@pytest.mark.parametrize(("name", "dtype"), RUNGS)
def test_what_is_not_visible_changes_nothing(name, dtype, rng):
    """Other slots, later panels and what was never written are NaN."""
    q, k, v = rows(rng, 2 * panel())
    n = panel() + 2
    with using(attention=name):
        wanted = at_once(q[:n], k[:n], v[:n], dtype)
        cache = Cache.empty(3, H, 3 * panel(), D, dtype)
        for part in (cache.keys, cache.values):
            part.fill(np.nan if dtype == "float32" else 0x7FFF7FFF)
        append(k, v, cache, [span(1, 0, n, 0)])
        assert attend(q[:n], cache, [span(1, 0, n, 0)]).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", dict(RUNGS))
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_poisoned_sequence_stays_alone(name, value, rng):
    q, k, v = rows(rng, 30)
    spans = [span(i, 0, 10, 10 * i) for i in range(3)]

    def run():
        cache = Cache.empty(3, H, 10, D)
        append(k, v, cache, spans)
        with np.errstate(invalid="ignore"):
            return attend(q, cache, spans)

    with using(attention=name):
        clean = run()
        for array in (q, k, v):
            array[12, D] = value  # the second head of the second sequence
        dirty = run()
    assert clean[:10].tobytes() == dirty[:10].tobytes() and clean[20:].tobytes() == dirty[20:].tobytes()
    assert not np.isfinite(dirty[12:20, D : 2 * D]).all()
    others = np.r_[0:D, 2 * D : 3 * D]
    assert clean[:, others].tobytes() == dirty[:, others].tobytes()


def test_scores_of_any_size(rng):
    """Equal weights where all scores are huge; the whole weight on one key where it stands out."""
    q, k, v = rows(rng, 40)
    same = at_once(np.full_like(q, 1e18), np.full_like(k, 1e18), v, "float32")
    means = np.cumsum(v.astype(np.float64), axis=0) / np.arange(1, 41)[:, None]
    assert np.abs(same - means).max() < 1e-5
    k[:] = 0
    k[4] = 1000
    found = at_once(np.ones_like(q), k, v, "float32")
    assert found[4:].tobytes() == np.repeat(v[4:5], 36, axis=0).tobytes()


BAD_SPANS = [
    ((4, 0, 1, 0, -1), "its slot is outside 0 to 3"),
    ((-1, 0, 1, 0, -1), "its slot"),
    ((0, 0, 11, 0, -1), "its position is outside 0 to 10"),
    ((0, 10, 1, 0, -1), "its position"),
    ((0, -1, 2, 0, -1), "its position"),
    ((0, 0, 2, 7, -1), "its row is outside 0 to 8"),
    ((0, 0, 1, -1, -1), "its row"),
    ((0, 2, 1, 0, 4), "its source"),
    ((0, 2, 1, 0, -2), "its source"),
    ((0, 0, -3, 5, -1), "its count"),
    ((0, 2, 2**62, 2**62, -1), "its"),
    ((0, 2**63 - 1, 1, 0, -1), "its position"),
    ((0, 0, 1, 2**63 - 1, -1), "its row"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_SPANS)
def test_a_span_that_leaves_its_memory_is_refused(bad, message, rng):
    q, k, v = rows(rng, 8)
    cache = Cache.empty(4, H, 10, D)
    for call in (lambda spans: append(k, v, cache, spans), lambda spans: attend(q, cache, spans)):
        with pytest.raises(UsageError, match=f"span 1 is .*{message}"):
            call([span(0, 0, 2, 0), bad])


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((8, H * D - 1), np.float32),
        np.zeros((7, H * D), np.float32),
        np.zeros((8, H * D)),
        np.zeros((H * D, 8), np.float32).T,
        np.zeros(8, np.float32),
    ],
)
def test_rows_of_another_shape_are_refused(wrong, rng):
    q, k, _ = rows(rng, 8)
    cache, spans = Cache.empty(1, H, 10, D), [span(0, 0, 2, 0)]
    with pytest.raises(UsageError, match=r"attention: v is .*; float32 \(8, 60\) with contiguous rows"):
        append(k, wrong, cache, spans)
    append(k, k, cache, spans)
    with pytest.raises(UsageError, match="attention: out is"):
        attend(q, cache, spans, out=wrong)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_a_scale_that_is_none_is_refused(scale, rng):
    q, k, v = (x.reshape(1, 1, 8, -1) for x in rows(rng, 8))
    with pytest.raises(UsageError, match="attention: scale"):
        attention(q, k, v, scale=scale)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.zeros((1, 2, 9, 4), np.float32)}, "Q be at most T"),
        ({"q": np.zeros((1, 3, 2, 4), np.float32)}, "attention: q is"),
        ({"k": np.zeros((1, 2, 8, 5), np.float32)}, "attention: q is"),
        ({"v": np.zeros((1, 2, 7, 4), np.float32)}, "attention: q is"),
        ({"q": np.zeros((2, 4), np.float32)}, "attention: q is"),
        ({"q": np.zeros((1, 2, 2, 4))}, "float64"),
        ({"out": np.zeros((1, 2, 2, 3), np.float32)}, "out is float32"),
    ],
)
def test_arrays_that_do_not_fit(change, message):
    arrays = {"q": np.zeros((1, 2, 2, 4), np.float32)} | dict.fromkeys("kv", np.zeros((1, 2, 8, 4), np.float32))
    with pytest.raises(UsageError, match=message):
        attention(**(arrays | change))


def test_the_bytes_of_a_sequence_are_those_of_the_cache():
    for length in (1, panel(), panel() + 1, 70):
        for dtype in ("float32", "bfloat16"):
            cache = Cache.empty(5, H, length, D, dtype)
            assert cache.keys.nbytes + cache.values.nbytes == 5 * bytes_a_sequence(H, length, D, dtype)
            assert cache.length == length and cache.heads == H and cache.dtype == dtype
