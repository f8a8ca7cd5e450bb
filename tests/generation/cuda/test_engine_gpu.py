"""GPT-2 and its engine on a GPU: with TILEWRIGHT_GPU=1 on one; else on the CPU's tensors, and operations of PyTorch in
float64 stand in for the kernels."""

import gc
import math
import weakref

import numpy as np
import pytest

from gpt2_models import TINY, divergences, random_weights, save, tiny, unpatched
from gpu import ON_GPU
from tilewright.errors import ResourceError, UsageError
from tilewright.generation import language_model
from tilewright.generation.sampling import SamplingParams
from tilewright.generation.sequences import Request
from tilewright.models import decoder
from tilewright.models.gpt2 import GPT2, GPT2Config
from tilewright.ops.attention.operands import DeviceCache

torch = pytest.importorskip("torch")
cuda = pytest.importorskip("tilewright.backends.cuda")
attention = pytest.importorskip("tilewright.generation.cuda.attention")
decode_state = pytest.importorskip("tilewright.generation.cuda.decode_state")
drawing = pytest.importorskip("tilewright.generation.cuda.drawing")
engine = pytest.importorskip("tilewright.generation.cuda.engine")
lanes = pytest.importorskip("tilewright.generation.cuda.lanes")
pytestmark = pytest.mark.usefixtures("quick_interpreter")
BACKEND = language_model.backend
V, CONTEXT = TINY["vocab_size"], TINY["n_positions"]
GREEDY = SamplingParams(temperature=0, max_tokens=8)
KINDS = {
    "greedy": GREEDY,
    "longer": SamplingParams(temperature=0, max_tokens=11),
    "one token": SamplingParams(temperature=0, max_tokens=1),
    "waits": SamplingParams(temperature=0, max_tokens=6, min_tokens=2, stop_token_ids=tuple(range(40))),
    "stops": SamplingParams(temperature=0, max_tokens=9, stop_token_ids=tuple(range(0, V, 6))),
    "greedy with logprobs": SamplingParams(temperature=0, max_tokens=8, logprobs=20),
    "sampled": SamplingParams(max_tokens=8),
    "sampled three times": SamplingParams(n=3, max_tokens=7, temperature=0.8, top_k=40, top_p=0.9, seed=11),
    "sampled, stops": SamplingParams(max_tokens=9, min_p=0.01, stop_token_ids=tuple(range(0, V, 6))),
    "penalised by count": SamplingParams(max_tokens=9, presence_penalty=1.1, frequency_penalty=-1.7, logprobs=2),
    "biased": SamplingParams(temperature=0, max_tokens=7, logit_bias={5: 4.0, 6: -100, 9: 2.5}, frequency_penalty=2),
    "allowed": SamplingParams(max_tokens=9, allowed_token_ids=range(3, 40), no_repeat_ngram_size=2, logprobs=0),
    "suppressed": SamplingParams(temperature=0, max_tokens=9, suppress_tokens=range(0, 97, 3), repetition_penalty=1.2),
    "sampled twice, penalised": SamplingParams(n=2, max_tokens=5, top_p=0.9, repetition_penalty=1.3, logprobs=3),
}
SIMPLE = [KINDS[name] for name in ("greedy", "longer", "one token", "stops")]
SAMPLED = [KINDS[name] for name in ("sampled", "sampled three times", "sampled, stops")]


@pytest.fixture(autouse=True)
def small_lanes(monkeypatch):
    """Lanes that fill up and caches that are filled with NaN; on a CPU the stand-ins."""
    monkeypatch.setattr(lanes, "LANE", 48)
    monkeypatch.setattr(engine.CudaEngine, "ahead", 48)

    def poisoned(*sizes, on=DeviceCache.on):
        cache = on(*sizes)
        for part in (cache.keys, cache.values):
            part.fill_(math.nan)
        return cache

    monkeypatch.setattr(DeviceCache, "on", poisoned)
    if ON_GPU:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # rows are few: to share them out takes longer than the work
    from gpt2_stand_ins import StandIns

    stand_ins = StandIns()
    for name in ("embedding", "layernorm", "matmul", "matmul_argmax", "matmul_peaks", "prepare", "prepare_argmax"):
        monkeypatch.setattr(decoder, name, getattr(stand_ins, name))
    for name in ("checked_spans", "append", "attend", "append_and_attend"):
        monkeypatch.setattr(attention, name, getattr(stand_ins, name))
    monkeypatch.setattr(drawing, "draw", stand_ins.draw)
    monkeypatch.setattr(language_model, "backend", lambda device, dtype, without: cuda.Cuda(dtype, "cpu", without))
    yield
    torch.set_num_threads(threads)


def on_gpu(dtype="float32", seed=0, weights=None, without=frozenset(), **sizes) -> GPT2:
    """The same model as `tiny`, there."""
    config = GPT2Config(**{**TINY, **sizes})
    weights = random_weights(config, seed) if weights is None else weights
    return GPT2(config, weights, dtype=dtype, device="cuda", without=without)


def answers(model, requests, *, slots: int = 800, seed: int = 0) -> list[list]:
    """Everything that the engine says of each request, with room for so many sequences at once."""
    memory = slots * model.attention.cache_bytes(CONTEXT)
    return list(model.engine(seed=seed, memory=memory).run(requests))


def company(rng, count: int, kinds=None) -> list[Request]:
    """Records of every kind and length, many with a beginning in common, some the same as others."""
    kinds, roots = kinds or list(KINDS.values()), [rng.integers(0, V, 30) for _ in range(3)]
    requests = []
    for i in range(count):
        own = rng.integers(0, V, rng.integers(1, 41))
        shared = np.concatenate([roots[i % 3][: rng.integers(1, 31)], own[: rng.integers(0, 9)]])
        ids = (own, shared, roots[i % 3], own)[i % 4]
        requests.append(Request(f"r{i}", ids, kinds[int(rng.integers(len(kinds)))]))
    return requests


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"] if ON_GPU else ["float32"])
@pytest.mark.parametrize("kinds", [None, SIMPLE, SAMPLED], ids=["every kind", "greedy ones", "sampled ones"])
def test_a_record_is_the_same_in_every_company(dtype, kinds, rng):
    model, count = on_gpu(dtype), 120 if ON_GPU else 32
    requests = company(rng, count, kinds)
    alone = {request.id: repr(answers(model, [request])[0]) for request in requests}
    for size, slots in [(2, 800), (11, 4), (count, 1), (count, 7), (count, 800)]:
        chosen = [requests[i] for i in rng.permutation(count)[:size]]
        for request, found in zip(chosen, answers(model, chosen, slots=slots), strict=True):
            assert repr(found) == alone[request.id], (size, slots, request)


@pytest.mark.parametrize("name", ["prefix-sharing", "overlap", *(["pinned", "graphs"] if ON_GPU else ["kv-cache"])])
def test_a_switch_keeps_the_bits(name, rng):
    requests = company(rng, 60)
    assert repr(answers(on_gpu(without={name}), requests)) == repr(answers(on_gpu(), requests))


def test_without_a_kv_cache_the_tokens_are_the_same(rng):
    """A GPU prefills by other kernels than it decodes, so log-probabilities differ in their last bits."""
    requests = company(rng, 60)
    found = [[one.token_ids for many in answers(model, requests) for one in many]
             for model in (on_gpu(), on_gpu(without={"kv-cache"}))]  # fmt: skip
    assert found[0] == found[1]


def test_the_answers_are_the_cpus(rng):
    """Tokens, reasons and log-probabilities, within what two orders of summing explain."""
    requests = company(rng, 100)
    found = answers(on_gpu(), requests)
    with pytest.MonkeyPatch.context() as patch:
        unpatched(patch, BACKEND)
        host = tiny()
        wanted = answers(host, requests)
        parted = 0
        for request, ours, theirs in zip(requests, found, wanted, strict=True):
            for mine, other in zip(ours, theirs, strict=True):
                if mine.token_ids != other.token_ids:
                    assert request.params.greedy, "random numbers fall where both have the same token"
                    parted += 1
                    explained(host, request.token_ids, mine.token_ids)
                    continue
                assert (mine.finish_reason, mine.failed, mine.index) == (other.finish_reason, False, other.index)
                for a, b in zip(mine.logprobs or (), other.logprobs or (), strict=True):
                    assert list(a.values()) == pytest.approx(list(b.values()), abs=2e-3)
    assert parted <= 2


def explained(host, prompt, tokens) -> None:
    """Fails unless each token is the best one by the CPU's logits, or so near that rounding explains it."""
    from gpt2_models import logits_of

    rows = logits_of(host, [*prompt, *tokens[:-1]])[len(prompt) - 1 :]
    divergences(tokens, rows, 1e-4 * float(np.abs(rows).max()))


@pytest.mark.parametrize("ahead", [1, 3, 128])
def test_stops_are_where_the_tokens_are(ahead, monkeypatch):
    """However many steps are queued at once: end-of-text, stop ids, stop strings, the limit, and the end of context."""
    monkeypatch.setattr(lanes, "STOPPING", ahead)
    model, prompt = on_gpu(), np.array([3, 4, 5])

    class Letters:
        """Token i is the letter with that number."""

        def decode(self, ids):
            return "".join(chr(0x4E00 + int(i)) for i in ids)

        def encode_word(self, text):
            return [ord(letter) - 0x4E00 for letter in text]

    def alone(**options):
        params = SamplingParams(temperature=0, **{"max_tokens": 8, **options})
        return next(model.generate([prompt], params)).outputs[0]

    free = alone().token_ids
    third, at = free[2], free.index(free[2])
    assert len(free) == 8 and alone().finish_reason == "length"
    found = alone(stop_token_ids=(third, 5000))
    assert (found.token_ids, found.finish_reason) == (free[: at + 1], "stop")
    model.stop_ids = (third,)
    assert alone().token_ids == free[: at + 1] and alone(ignore_eos=True).token_ids == free
    waited = alone(min_tokens=6)
    assert third not in waited.token_ids[:6] and len(waited.token_ids) >= 6
    model.stop_ids = ()
    model.tokenizer = Letters()
    text = Letters().decode(free)
    cut = alone(stop=("zzz", text[3:5]))
    end = text.index(text[3:5])
    assert (cut.text, cut.finish_reason, cut.token_ids) == (text[:end], "stop", free[: end + 2])
    model.tokenizer = None
    long = alone(max_tokens=500)
    assert (len(long.token_ids), long.finish_reason) == (CONTEXT - 3, "length") and long.token_ids[:8] == free


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_record_without_logits_costs_the_others_nothing(value, rng):
    """One token's embedding is no number; the others' prompts share their beginnings with those that hold it."""
    config, poison = GPT2Config(**TINY), 42
    model = on_gpu(weights=random_weights(config))
    kinds = [*SIMPLE, KINDS["greedy with logprobs"]]
    clean = [Request(r.id, np.where(r.token_ids == poison, 7, r.token_ids), r.params) for r in company(rng, 20, kinds)]
    alone = {r.id: answers(model, [r])[0] for r in clean}
    model.wte = model.wte.clone()  # the output matrix was prepared from the sound one
    model.wte[poison] = value
    bad = []
    for r in clean[::3]:
        ids = np.array(r.token_ids)
        ids[-1] = poison
        longer = np.append(r.token_ids, poison)
        bad += [Request(f"bad {r.id}", longer, r.params), Request(f"bad2 {r.id}", ids, r.params)]
    requests = [*clean, *bad]
    order = [requests[i] for i in rng.permutation(len(requests))]
    for slots in (5, 800):
        for request, found in zip(order, answers(model, order, slots=slots), strict=True):
            if request.id in alone:
                chosen = {token for one in alone[request.id] for token in one.token_ids}
                if poison not in chosen:  # by its own choice the record goes the same way
                    assert repr(found) == repr(alone[request.id]), request.id
            else:
                assert all(one.failed for one in found), request.id


def test_steps_are_queued_as_far_as_they_are_surely_wanted(monkeypatch, rng):
    """Eight tokens of many prompts are two calls: the prompts, and seven steps; the host never waits in between."""
    model, queued = on_gpu(), []
    decode = decode_state.DecodeState.decode

    def noted(state, n, steps):
        queued.append((n, steps))
        return decode(state, n, steps)

    monkeypatch.setattr(decode_state.DecodeState, "decode", noted)
    prompts = [rng.integers(0, V, 5) for _ in range(100)]
    found = answers(model, [Request(i, ids, GREEDY) for i, ids in enumerate(prompts)])
    assert queued == [(48, 7), (48, 7), (4, 7)] and all(len(one[0].token_ids) == 8 for one in found)
    queued.clear()
    mixed = [SamplingParams(temperature=0, max_tokens=n) for n in [2] + [30] * 20]
    answers(model, [Request(i, prompts[i], p) for i, p in enumerate(mixed)])
    assert queued[0] == (21, 29), "one sequence that ends early does not stop the others"
    queued.clear()
    mixed = [SamplingParams(temperature=0, max_tokens=n) for n in [2] * 10 + [30] * 10]
    answers(model, [Request(i, prompts[i], p) for i, p in enumerate(mixed)])
    assert queued == [(20, 1), (10, 28)]


def test_a_decode_state_is_left_to_the_next_engine(rng):
    model, requests = on_gpu(), [Request(i, rng.integers(0, V, 5), GREEDY) for i in range(3)]
    first = answers(model, requests)
    state = model.attention.free
    assert state is not None and answers(model, requests) == first and model.attention.free is state
    answers(model, requests, slots=1)
    assert model.attention.free is not state
    run = model.engine(memory=1 << 22).run(iter(requests))
    next(run)
    assert model.attention.free is None
    run.close()
    assert model.attention.free is not None and answers(model, requests) == first


def test_a_decode_state_of_another_size_is_freed_before_the_next_is_allocated(rng, monkeypatch):
    """By PyTorch's allocator, too, which would keep its blocks: they are too small for longer slots."""
    model, freed = on_gpu(), []
    answers(model, [Request(0, rng.integers(0, V, 5), GREEDY)], slots=1)
    state = weakref.ref(model.attention.free)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(state() is None))
    answers(model, [Request(0, rng.integers(0, V, 5), GREEDY)], slots=2)
    assert freed[:1] == [True]


def test_a_decode_state_is_freed_with_its_model(rng):
    """At once: what waits for Python's collector would hold most of a GPU's memory."""
    model = on_gpu()
    answers(model, [Request(i, rng.integers(0, V, 5), KINDS["sampled"]) for i in range(3)])
    state = weakref.ref(model.attention.free)
    gc.collect()
    gc.disable()
    try:
        del model
        assert state() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("first", ["greedy", "sampled"])
def test_what_has_no_lane_gets_one(first, rng):
    """Of a stream of one kind with a request of the other among the first, that one is not answered last."""
    other = {"greedy": "sampled", "sampled": "greedy"}[first]
    model, order = on_gpu(), []
    requests = [Request(i, rng.integers(0, V, 5), KINDS[first]) for i in range(700)]
    requests[60] = Request(60, rng.integers(0, V, 5), KINDS[other])
    running = model.engine(memory=800 * model.attention.cache_bytes(CONTEXT))
    finish = running.finish
    running.finish = lambda queue, done, *rest: (order.extend(done.request.tolist()), finish(queue, done, *rest))
    assert len(list(running.run(requests))) == 700
    assert order.index(60) < 400


def test_memory_that_does_not_suffice_means_fewer_slots(monkeypatch, rng):
    model, requests = on_gpu(), [Request(i, rng.integers(0, V, 5), GREEDY) for i in range(9)]
    wanted = answers(model, requests)
    model.attention.free = None
    caches, asked = model.attention.caches, []

    def small(slots, length):
        asked.append(slots)
        if slots > 5:
            raise torch.cuda.OutOfMemoryError("out of memory. Tried to allocate 1 GiB.")
        return caches(slots, length)

    monkeypatch.setattr(model.attention, "caches", small)
    assert answers(model, requests) == wanted and asked[-1] <= 5 < asked[0]
    model.attention.free = None
    monkeypatch.setattr(model.attention, "caches", lambda slots, length: small(6, length))
    with pytest.raises(ResourceError, match=r"too little memory for one sequence: out of memory$|one sequence"):
        answers(model, requests)
    with pytest.raises(ResourceError, match=r"positions take [\d,]+ bytes; 1,000 are allowed"):
        list(model.generate([[1, 2, 3]], GREEDY, max_batch_memory=1000))


def test_prompts_that_do_not_fit_at_once_are_computed_in_halves(monkeypatch, rng):
    model, requests = on_gpu(), company(rng, 20, SIMPLE)
    wanted, passes, prefill = answers(model, requests), [], decode_state.DecodeState.prefill

    def small(state, ids, *rest):
        passes.append(len(ids))
        if len(ids) > 60:
            raise torch.cuda.OutOfMemoryError("out of memory. Tried to allocate 1 GiB.")
        return prefill(state, ids, *rest)

    monkeypatch.setattr(decode_state.DecodeState, "prefill", small)
    assert answers(model, requests) == wanted and max(passes) > 60 and min(passes) < 60


def test_equal_requests_are_computed_once(monkeypatch, rng):
    model, rows, ids = on_gpu(), [], rng.integers(0, V, 20)
    prefill = decode_state.DecodeState.prefill
    monkeypatch.setattr(
        decode_state.DecodeState,
        "prefill",
        lambda state, ids, *rest: (rows.append(len(ids)), prefill(state, ids, *rest))[1],
    )
    found = answers(model, [Request(i, ids, SamplingParams(temperature=0, max_tokens=8)) for i in range(40)])
    assert len(found) == 40 and all(repr(one) == repr(found[0]) for one in found) and rows == [20]


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(max_tokens=8, top_k=5, seed=3)], ids=["greedy", "sampled"])
def test_prompts_that_lie_as_before_are_captured(params, rng):
    """On a GPU a third lane of prompts of one length is replayed. It must give what others give."""
    model, prompts, ids = on_gpu(), rng.integers(0, V, (5 * 48, 6)), np.arange(5 * 48)
    prompts[:, 0] = ids % V  # nothing in common within a lane

    def tokens(order, params=params):
        return [one.outputs[0].token_ids for one in model.generate(prompts[order], params, ids=ids[order].tolist())]

    found = tokens(ids)
    assert tokens(ids[::-1])[::-1] == found and [tokens(ids[i : i + 1])[0] for i in ids[::17]] == found[::17]
    passes = [each for (_, _, draws), each in model.attention.free.prefills.items() if draws != params.greedy]
    assert not ON_GPU or any(each.repeated.graph for each in passes), "nothing was captured"
    other = GREEDY if params is not GREEDY else SamplingParams(max_tokens=8, top_k=5, seed=3)
    assert tokens(ids, other) != found and tokens(ids) == found


def test_the_job_writes_what_the_cpus_job_writes(tmp_path, monkeypatch, rng):
    """Prompts of a file, bad ones and some with parameters of their own; and the course's binary tokens."""
    import json

    from tilewright.runtime import fingerprint, load, start
    from tilewright.runtime.jobs.settings import Settings
    from tilewright.runtime.verbs.generate import GenerateJob, generate

    save(tmp_path / "m", tokenizer=False)
    lines = [{"prompt_token_ids": rng.integers(0, V, n).tolist()} for n in (5, 9, 1, 30)]
    lines[1:1] = [{"prompt_token_ids": [V]}, {"prompt_token_ids": [1, 2], "temperature": 1, "n": 2}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines * 20))
    rng.integers(0, V, (90, 16), np.int32).tofile(tmp_path / "in.bin")
    for module in (fingerprint, load, start):
        monkeypatch.setattr(module, "place_for", lambda device, dtype="": device)
    monkeypatch.chdir(tmp_path)
    for ending in ("jsonl", "bin"):
        report = generate(GenerateJob("m", f"in.{ending}", f"there.{ending}", GREEDY, settings=Settings(device="cuda")))
        with pytest.MonkeyPatch.context() as patch:
            unpatched(patch, BACKEND)
            generate(GenerateJob("m", f"in.{ending}", f"here.{ending}", GREEDY))
        assert report.records == (120 if ending == "jsonl" else 90)
        assert (tmp_path / f"there.{ending}").read_bytes() == (tmp_path / f"here.{ending}").read_bytes()


def test_an_unknown_device_or_dtype_is_named():
    with pytest.raises(UsageError, match="'tpu'; it must be cpu or cuda"):
        BACKEND("tpu", "float32")
    with pytest.raises(UsageError, match="float64"):
        cuda.Cuda("float64", "cpu")
