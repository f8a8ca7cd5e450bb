"""attention's rungs for GPUs: with TILEWRIGHT_GPU=1 (`make test-gpu`) on a GPU, on every case; else in numba-cuda's
simulator and Triton's interpreter, which run kernels as Python, on tiny ones."""

from dataclasses import replace

import numpy as np
import pytest

import gpu
from compare import compare
from gpu import ON_GPU, PLACE, widen_bfloat16
from ops.cases import cases_of
from tilewright.bench.sizes import attention as spec
from tilewright.errors import Refused, UsageError
from tilewright.ops.attention import (
    DeviceCache,
    Problem,
    append,
    append_and_attend,
    attend,
    attention,
    bytes_a_sequence,
    ladder,
    span,
)
from tilewright.ops.attention.problem import DEVICE_DTYPES, EPS16, Case
from tilewright.ops.core.ladder import using

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("simulated_gpu")

H, D = 2, 16
TINY = [Case(1, 1, 1, 1, 1), Case(2, 2, 5, 5, 8), Case(1, 2, 3, 20, 20), Case(2, 1, 1, 6, 16), Case(0, 2, 3, 4, 8)]
TINY += [Case(1, 2, 4, 7, 16, causal=False)]
BLOCKS = [Case(1, 1, 67, 131, 16), Case(1, 1, 1, 70, 16), Case(1, 1, 3, 66, 8, causal=False)]  # more than one of keys


@pytest.fixture(autouse=True)
def bfloat16_is_multiplied(monkeypatch):
    widen_bfloat16(monkeypatch)


def problem(dtype: str) -> Problem:
    return Problem(D, dtype, "cuda")


def accepted(*few: str, dtypes=DEVICE_DTYPES):
    """(rung, class) of those that run here: every rung on a GPU, else `few` of them."""
    return list(gpu.accepted(ladder, problem, dtypes, *few))


def cases(rung, dtype):
    """Of a class that it takes. On a GPU float16's are few: they are compiled apart, but the same as bfloat16's."""
    few = [case for case in TINY if case.T < 8] if rung.name.startswith("simt.") else [*TINY, *BLOCKS]
    few = few[1:2] if dtype == "float16" else few
    widths = (20, 64) if dtype == "float16" else range(1, 1000)
    large = [case for case in cases_of("attention") if case.dtype == "float32" and case.D in widths] + BLOCKS
    return [replace(case, dtype=dtype, device="cuda") for case in (large if ON_GPU else few)]


@pytest.mark.parametrize(("rung", "case"), list(gpu.every(ladder, problem, DEVICE_DTYPES, cases)))
def test_rung(rung, case, rng):
    gpu.check("attention", rung, case, rng)


def rows(rng, count: int, dtype: str) -> list:
    """q, k, v (count, H * D) as columns of one tensor, in the class's dtype."""
    wide = torch.from_numpy(rng.standard_normal((count, 3 * H * D), dtype=np.float32))
    return list(wide.to(getattr(torch, dtype)).to(PLACE).split(H * D, dim=1))


def cache_of(slots: int, length: int, dtype: str):
    """A cache full of NaN."""
    cache = DeviceCache.on(PLACE, slots, H, length, D, dtype)
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    return cache


def nans(count: int):
    return torch.full((count, H * D), torch.nan, device=PLACE)


def at_once(q, k, v, dtype: str):
    """One sequence alone in a cache of its own length, appended before it is attended to: (T, H * D)."""
    cache, spans = cache_of(1, len(q), dtype), [span(0, 0, len(q), 0)]
    append(k, v, cache, spans)
    return attend(q, cache, spans, out=nans(len(q)))


def integers(*numbers):
    return torch.tensor(numbers, dtype=torch.int32, device=PLACE)


MOST = ("simt.fused", "tile.blocks", "tile.kept")


@pytest.mark.parametrize(("rung", "dtype"), accepted(*MOST, dtypes=("float32", "bfloat16")))
def test_sequences_of_any_lengths_have_the_bits_that_they_have_alone(rung, dtype, rng):
    """Appended before or by the same kernel, in slots out of order, whatever the others' lengths are."""
    if ON_GPU:
        lengths = [1, 16, 17, 32, 33, 64, 65, 5, 128, 200, 63]
    else:
        lengths = [1, 3] if rung.name.startswith("simt.") else [1, 17, 66]
    q, k, v = rows(rng, sum(lengths), dtype)
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    spans = [span(len(lengths) - i, 0, n, at) for i, (n, at) in enumerate(zip(lengths, starts, strict=True))]
    with using(attention=rung.name):
        before, new = cache_of(len(lengths) + 1, 210, dtype), cache_of(len(lengths) + 1, 210, dtype)
        append(k, v, before, spans)
        first = attend(q, before, spans[::-1], out=nans(len(q)))
        second = attend(q, new, spans, new=(k, v), out=nans(len(q)))
        assert torch.equal(first, second)
        assert torch.equal(before.keys.nan_to_num(7), new.keys.nan_to_num(7))
        assert torch.equal(before.values.nan_to_num(7), new.values.nan_to_num(7))
        for n, at in zip(lengths, starts, strict=True):
            assert torch.equal(first[at : at + n], at_once(*(x[at : at + n] for x in (q, k, v)), dtype)), n


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("rung", "dtype"), accepted("tile.direct", dtypes=("float32", "bfloat16") if ON_GPU else ("bfloat16",))
)
def test_keys_that_nobody_reads_again_need_no_cache(rung, dtype, causal, rng):
    """The bits of `tile.kept`, whatever the cache holds; a text that continues one of the cache runs as there."""
    if rung.name != "tile.direct":
        pytest.skip(f"{rung.name} writes the cache")
    lengths = [1, 16, 17, 32, 33, 64, 65, 5, 128, 200, 63] if ON_GPU else [17, 1, 66]
    q, k, v = rows(rng, sum(lengths), dtype)
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    spans = [span(i, 0, n, at) for i, (n, at) in enumerate(zip(lengths, starts, strict=True))]
    cache = cache_of(len(lengths), 210, dtype)
    with using(attention="tile.kept"):
        wanted = attend(q, cache, spans, causal=causal, new=(k, v), out=nans(len(q)))
    with using(attention=rung.name):
        unwritten = cache_of(len(lengths), 210, dtype)
        found = attend(q, unwritten, spans, causal=causal, new=(k, v), keep=False, out=nans(len(q)))
        assert torch.equal(found, wanted) and unwritten.keys.isnan().all() and unwritten.values.isnan().all()
        again = [span(0, lengths[0] - 1, 1, lengths[0] - 1)]  # its first positions are in the cache
        found = attend(q, cache, again, causal=causal, new=(k, v), keep=False, out=nans(len(q)))
        assert torch.equal(found[lengths[0] - 1], wanted[lengths[0] - 1])


@pytest.mark.parametrize(("rung", "dtype"), accepted(*MOST, dtypes=("float32", "bfloat16")))
def test_however_a_text_is_cut_into_steps_its_bits_are_the_same(rung, dtype, rng):
    """Prompts cut anywhere, and single positions by the kernel for decoding."""
    if rung.name == "simt.unfused":
        pytest.skip("the number of keys orders its sums")
    T = 150 if ON_GPU else 4 if rung.name.startswith("simt.") else 67
    q, k, v = rows(rng, T, dtype)
    cuts = (0, 15, 16, 50, 90, T - 3, T) if ON_GPU else (0, T - 3, T)
    with using(attention=rung.name):
        wanted, cache, found = at_once(q, k, v, dtype), cache_of(2, T + 3, dtype), nans(T)
        for i in range(len(cuts) - 1):
            spans = [span(1, cuts[i], cuts[i + 1] - cuts[i], cuts[i])]
            attend(q, cache, spans, new=(k, v), out=found)
        assert torch.equal(found, wanted)
        cache, found = cache_of(2, T + 3, dtype), nans(T)
        first = 0 if ON_GPU else T - 2
        if first:
            append(k[:first], v[:first], cache, [span(1, 0, first, 0)])
        for t in range(first, T):
            mine = [x[t : t + 1] for x in (q, k, v)]
            target = integers(1), integers(t)
            append_and_attend(*mine, cache, *target, longest=t + 1, out=found[t : t + 1])
            again = append_and_attend(*mine, cache, *target, longest=T, out=nans(1))
            assert torch.equal(again, found[t : t + 1]), "bits depend on the longest of the batch"
        if rung.name in ("tile.kept", "tile.direct") and dtype == "float32":  # decodes by multiply-adds
            compare(found[first:].cpu().numpy(), wanted[first:].cpu().numpy(), 1e-5)
        else:
            assert torch.equal(found[first:], wanted[first:])


def test_float32_decodes_by_one_kernel_whatever_the_longest_sequence_is(rng, monkeypatch):
    """Smaller blocks for short sequences would be other kernels, which may round or add in another order."""
    launched = set()

    class Recorded:
        def __getitem__(self, grid):
            return lambda *given, **options: launched.add((*given[6:], *sorted(options.items())))

    step = pytest.importorskip("tilewright.ops.attention.tile.step")
    monkeypatch.setattr(step, "step_plain", Recorded())
    q, k, v = rows(rng, 1, "float32")
    with using(attention="tile.kept"):
        for longest in (1, 16, 17, 64, 150):
            append_and_attend(q, k, v, cache_of(1, 150, "float32"), integers(0), integers(0), longest=longest)
    assert len(launched) == 1


def test_float32_decodes_few_rows_and_many_to_the_same_bits(rng, monkeypatch):
    """With few rows the next block is loaded ahead."""
    launch = pytest.importorskip("tilewright.ops.attention.tile.launch")
    forms, kernel = [], launch.step.step_plain

    class Recorded:
        def __getitem__(self, grid):
            return lambda *given, **options: (forms.append(given[-1]), kernel[grid](*given, **options))

    monkeypatch.setattr(launch.step, "step_plain", Recorded())
    q, k, v = rows(rng, 3, "float32")
    past, found = rows(rng, 140, "float32")[1:], []
    with using(attention="tile.kept"):
        for most in (3, 2):
            monkeypatch.setattr(launch, "ROWS", most)
            cache = cache_of(3, 141, "float32")
            append(*past, cache, [span(0, 0, 140, 0), span(1, 0, 64, 0), span(2, 0, 5, 0)])
            target = integers(0, 1, 2), integers(140, 64, 5)
            found.append(append_and_attend(q, k, v, cache, *target, longest=141, out=nans(3)))
    assert [form.ahead for form in forms] == [True, False]
    assert torch.equal(*found) and not torch.isnan(found[0]).any()


@pytest.mark.parametrize(("rung", "dtype"), accepted(*MOST, dtypes=("float32", "bfloat16")))
def test_decoding_appends_nothing_for_slot_minus_1(rung, dtype, rng):
    q, k, v = rows(rng, 4, dtype)
    slots, positions = integers(2, -1, 0, -1), integers(1, 7, 0, 0)
    with using(attention=rung.name):
        cache = cache_of(3, 4, dtype)
        append(k[:1], v[:1], cache, [span(2, 0, 1, 0)])
        found = append_and_attend(q, k, v, cache, slots, positions, longest=4, out=nans(4))
        alone = cache_of(1, 4, dtype)
        append(k[:1], v[:1], alone, [span(0, 0, 1, 0)])
        wanted = append_and_attend(*(x[:1] for x in (q, k, v)), alone, integers(0), integers(1), longest=2)
    assert torch.equal(found[0], wanted[0])
    compare(found[2].cpu().numpy(), v[2].double().cpu().numpy(), EPS16.get(dtype, 1e-6) * 4)
    assert not found[[1, 3]].any()
    assert torch.isnan(cache.keys[1]).all() and torch.isnan(cache.keys[2, :, 2:]).all()


@pytest.mark.parametrize(("rung", "dtype"), accepted("tile.kept", dtypes=("float16", "bfloat16")))
@pytest.mark.parametrize("T", [17, 66, 128])
def test_heads_that_share_a_program_have_the_bits_that_they_have_alone(rung, dtype, T, rng, monkeypatch):
    if rung.name.startswith("simt.") or rung.name == "tile.blocks":
        pytest.skip(f"{rung.name}: a program has one head")
    from tilewright.ops.attention.tile import launch

    q, k, v = rows(rng, 3, dtype)
    past = rows(rng, 2 * T, dtype)[1:]
    found = []
    for programs in (1 << 20, 1):
        monkeypatch.setattr(launch, "PROGRAMS", programs)
        monkeypatch.setattr(launch, "LONG_PROGRAMS", programs)
        cache = cache_of(2, T + 1, dtype)
        append(*past, cache, [span(0, 0, T, 0), span(1, 0, T, T)])
        target = integers(1, -1, 0), integers(T, 0, T - 1)
        found.append(append_and_attend(q, k, v, cache, *target, longest=T + 1, out=nans(3)))
    assert torch.equal(*found) and not torch.isnan(found[0]).any()


@pytest.mark.parametrize(("rung", "dtype"), accepted("simt.fused", "tile.kept", dtypes=("float32", "bfloat16")))
def test_prefixes_copied_down_a_chain(rung, dtype, rng):
    """Sources are in the same call, in chains, or were there before."""
    T, shared = (90, (70, 70, 20, 75, 1, 33)) if ON_GPU else (4, (3, 3, 1))
    q, k, v = rows(rng, (len(shared) + 2) * T, dtype)
    texts = [[x[:T].clone() for x in (q, k, v)]]
    for i, n in enumerate(shared):
        own = [x[(i + 1) * T : (i + 2) * T] for x in (q, k, v)]
        texts.append([torch.cat([before[:n], mine[n:]]) for before, mine in zip(texts[-1], own, strict=True)])
    firsts = (0, *shared)
    flat = [torch.cat([text[j][n:] for text, n in zip(texts, firsts, strict=True)]) for j in range(3)]
    at = np.cumsum([0] + [T - n for n in firsts]).tolist()
    slots = np.arange(len(texts))[::-1].tolist()
    spans = [span(slots[i], n, T - n, at[i], slots[i - 1] if n else -1) for i, n in enumerate(firsts)]
    with using(attention=rung.name):
        for calls in ([spans], [spans[:2], spans[2:3], spans[3:]]):
            cache, found = cache_of(len(texts), T, dtype), nans(len(flat[0]))
            for part in calls:
                attend(flat[0], cache, part, new=flat[1:], out=found)
            for i, text in enumerate(texts):
                assert torch.equal(cache.keys[slots[i]].transpose(0, 1).reshape(T, -1), text[1]), i
                assert torch.equal(cache.values[slots[i]].transpose(0, 1).reshape(T, -1), text[2]), i
        for i in (0, 2):
            assert torch.equal(found[at[i] : at[i + 1]], at_once(*texts[i], dtype)[firsts[i] :])


def test_who_owns_a_copied_position(rng):
    """Chains of sources against a walk down each of them."""
    from tilewright.ops.attention.spans import copied

    for _ in range(30):
        n = int(rng.integers(1, 12))
        slots, spans = rng.permutation(n + 3), []
        for i in range(n):
            source = int(rng.integers(-1, i)) if i else -1
            first = int(rng.integers(0, 9)) if source >= 0 or rng.random() < 0.2 else 0
            place = slots[source] if source >= 0 else slots[n] if rng.random() < 0.5 else -1
            spans.append((slots[i], first, 20 - first, 20 * i, place if first else -1))
        array = np.array(spans, np.int64)
        owner = {}
        for slot, first, _, row, source in spans:
            for p in range(20):
                start = owner.get((source, p), -1 - source) if source >= 0 else -1 - slot
                owner[slot, p] = row + p - first if p >= first else start
        found = {}
        for slot, first, count, row in copied(array).tolist():
            found |= {(slot, first + j): row if row < 0 else row + j for j in range(count)}
        wanted = {(s, p): owner[s, p] for s, first, _, _, source in spans if source >= 0 for p in range(first)}
        assert found == wanted


@pytest.mark.parametrize(("rung", "dtype"), accepted("simt.fused", "tile.kept", dtypes=("float32",)))
@pytest.mark.parametrize("value", [np.nan, np.inf] if ON_GPU else [np.inf])
@pytest.mark.filterwarnings("ignore:.*invalid value:RuntimeWarning")
def test_a_poisoned_sequence_stays_alone(rung, dtype, value, rng):
    q, k, v = rows(rng, 9, dtype)
    spans = [span(i, 0, 3, 3 * i) for i in range(3)]
    with using(attention=rung.name):
        clean = attend(q, cache_of(3, 4, dtype), spans, new=(k, v))
        for x in (q, k, v):
            x[4, D] = value  # the second head of the second sequence
        dirty = attend(q, cache_of(3, 4, dtype), spans, new=(k, v))
    assert torch.equal(clean[[0, 1, 2, 6, 7, 8]], dirty[[0, 1, 2, 6, 7, 8]])
    assert torch.equal(clean[:, :D], dirty[:, :D]) and not torch.isfinite(dirty[4:6, D:]).all()


@pytest.mark.parametrize(("rung", "dtype"), accepted("tile.kept", dtypes=("bfloat16", "float16")))
def test_a_16_bit_result_is_the_rounded_one(rung, dtype, rng):
    if dtype == "bfloat16" and not ON_GPU:
        pytest.skip("Triton's interpreter truncates where the GPU rounds to bfloat16")
    q, k, v = rows(rng, 5, dtype)
    with using(attention=rung.name):
        wide, short = nans(5), nans(5).to(q.dtype)
        for out in (wide, short):
            attend(q, cache_of(1, 5, dtype), [span(0, 0, 5, 0)], new=(k, v), out=out)
        assert torch.equal(wide.to(q.dtype), short)


@pytest.fixture
def simple():
    """The simplest rung, where it can run."""
    if why := ladder.rungs["simt.fused"].refuses(Problem(D, "float32", "cuda")):
        pytest.skip("; ".join(why))
    with using(attention="simt.fused"):
        yield


@pytest.mark.usefixtures("simple")
def test_plain_arrays(rng):
    for case in (Case(2, 1, 2, 3, 4), Case(1, 2, 2, 2, 5, causal=False), Case(0, 1, 1, 1, 4)):
        inputs = spec.make(case, rng)
        reference = spec.reference(case, inputs)
        tensors = {name: torch.from_numpy(inputs[name]).to(PLACE) for name in "qkv"}
        found = attention(**tensors, causal=case.causal)
        compare(found.cpu().numpy(), reference, spec.bound(case, inputs, reference))
        out = torch.full_like(found, torch.nan)
        assert attention(**tensors, causal=case.causal, out=out) is out and torch.equal(out, found)


@pytest.mark.usefixtures("simple")
def test_what_does_not_fit_is_named():
    q = torch.ones((4, H * D), device=PLACE)
    cache, one = cache_of(3, 6, "float32"), [span(0, 0, 4, 0)]
    slots, x4 = integers(0, 1, 2, -1), torch.ones((1, 1, 2, 4), device=PLACE)

    def step(slots=slots, positions=slots, longest=3):
        append_and_attend(q, q, q, cache, slots, positions, longest=longest)

    for words, call in {
        "k is a ndarray; a torch tensor": lambda: append(np.ones((4, 32), np.float32), q, cache, one),
        "v is float32 (4, 31)": lambda: append(q, q[:, :31], cache, one),
        "q is int64": lambda: attend(q.long(), cache, one),
        "with contiguous rows": lambda: attend(q.T.contiguous().T, cache, one),
        "out is float16": lambda: attend(q, cache, one, out=q.half()),
        "span 0 is [3, 0, 4, 0, -1]: its slot is outside": lambda: attend(q, cache, [span(3, 0, 4, 0)]),
        "span 0 is [0, 0, 5, 0, -1]: its row is outside 0 to 4": lambda: attend(q, cache, [span(0, 0, 5, 0)]),
        "two spans use slot 1": lambda: append(q, q, cache, [span(1, 0, 1, 0), span(1, 1, 1, 1)]),
        "of slot 0, which has fewer": lambda: append(q, q, cache, [span(0, 0, 2, 0), span(1, 3, 1, 2, 0)]),
        "which a later span writes": lambda: append(q, q, cache, [span(1, 3, 1, 0, 0), span(0, 2, 2, 1)]),
        "scale is -1.0": lambda: attend(q, cache, one, scale=-1.0),
        "slots is int64 (4,)": lambda: step(slots.long()),
        "positions is int32 (3,)": lambda: step(positions=slots[:3]),
        "longest is 7": lambda: step(longest=7),
        "D must agree": lambda: attention(x4, x4[..., :1, :], x4[..., :1, :]),
        "dtype is 'float64'": lambda: attention(x4, x4, x4, dtype="float64"),
        "out is float32 (1, 1, 2, 3)": lambda: attention(x4, x4, x4, out=x4[..., :3]),
        "it has cpu.unfused": lambda: forced("simt.fast", q, cache, one),
    }.items():
        with pytest.raises((UsageError, Refused)) as error:
            call()
        assert words in str(error.value)


def forced(name, q, cache, spans):
    with using(attention=name):
        return attend(q, cache, spans)


def test_a_gpu_rung_refuses_the_cpus_arrays_and_the_other_way_round():
    on_cpu, on_gpu = Problem(64), Problem(64, "float32", "cuda")
    for name, rung in ladder.rungs.items():
        why = "; ".join(rung.refuses(on_cpu if not name.startswith("cpu.") else on_gpu))
        assert "it takes" in why and ("on cuda" in why) and "on cpu" in why, name


def test_the_bytes_of_a_sequence_are_those_of_the_cache():
    for dtype in DEVICE_DTYPES:
        cache = DeviceCache.on(PLACE, 3, H, 7, D, dtype)
        assert cache.keys.nbytes + cache.values.nbytes == 3 * bytes_a_sequence(H, 7, D, dtype, "cuda")
        assert (cache.length, cache.heads, cache.dtype) == (7, H, dtype)
