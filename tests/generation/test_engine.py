"""The engine: a record's tokens are its own, whatever runs beside it; and every parameter does what it says."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

import tilewright as tw
from gpt2_models import TINY, logits_of, tiny
from tilewright.errors import ResourceError, UsageError
from tilewright.generation.engine import Engine
from tilewright.generation.sampling import SamplingParams
from tilewright.generation.sequences import Request
from tilewright.models.gpt2 import GPT2
from tilewright.ops.attention import Cache
from tilewright.ops.core.launch import threads

V, CONTEXT = TINY["vocab_size"], TINY["n_positions"]
GREEDY = SamplingParams(temperature=0, max_tokens=8)
KINDS = {
    "greedy": GREEDY,
    "greedy with logprobs": SamplingParams(temperature=0, max_tokens=8, logprobs=20),
    "sampled": SamplingParams(max_tokens=8, logprobs=20),
    "penalised by count": SamplingParams(max_tokens=9, presence_penalty=1.1, frequency_penalty=-1.7, logprobs=2),
    "biased": SamplingParams(temperature=0, max_tokens=7, logit_bias={5: 4.0, 6: -100, 9: 2.5}, frequency_penalty=2),
    "allowed": SamplingParams(max_tokens=9, allowed_token_ids=range(3, 40), no_repeat_ngram_size=2, logprobs=0),
    "suppressed": SamplingParams(temperature=0, max_tokens=9, suppress_tokens=range(0, 97, 3), repetition_penalty=1.2),
    "sampled twice, penalised": SamplingParams(n=2, max_tokens=5, top_p=0.9, repetition_penalty=1.3, logprobs=3),
}


def answers(model, requests, *, slots: int = 800, seed: int = 0) -> list[list]:
    """Everything that the engine says of each request, with room for so many sequences at once."""
    memory = slots * model.attention.cache_bytes(CONTEXT)
    return list(Engine(model, eos_token_ids=model.stop_ids, memory=memory, seed=seed).run(requests))


def company(rng, count: int) -> list[Request]:
    """Records of every kind: of all lengths, many with a beginning in common, some the same as others."""
    kinds, roots = list(KINDS.values()), [rng.integers(0, V, 30) for _ in range(3)]
    requests = []
    for i in range(count):
        own = rng.integers(0, V, rng.integers(1, 41))
        shared = np.concatenate([roots[i % 3][: rng.integers(1, 31)], own[: rng.integers(0, 9)]])
        ids = (own, shared, roots[i % 3], own)[i % 4]
        requests.append(Request(f"r{i}", ids, kinds[int(rng.integers(len(kinds)))]))
    return requests


def differing(run, requests, rng, companies) -> set:
    """Ids of the records that get another answer in some company than alone. run(requests, slots) -> answers;
    companies: (how many records, slots)."""
    alone = {request.id: run([request], 800)[0] for request in requests}
    found = set()
    for size, slots in companies:
        chosen = [requests[i] for i in rng.permutation(len(requests))[:size]]
        for request, answer in zip(chosen, run(chosen, slots), strict=True):
            if repr(answer) != repr(alone[request.id]):  # every float32 has its own repr
                found.add(request.id)
    return found


COMPANIES = [(2, 800), (3, 2), (11, 4), (40, 800), (40, 1), (200, 7), (200, 800)]


@pytest.mark.parametrize(
    ("dtype", "count"), [pytest.param("float32", 1, marks=pytest.mark.long), ("float32", 2), ("bfloat16", 2)]
)
def test_a_record_is_the_same_in_every_company(dtype, count, rng):
    model = tiny(dtype=dtype)
    with threads(count):
        found = differing(lambda r, slots: answers(model, r, slots=slots), company(rng, 200), rng, COMPANIES)
    assert not found, f"{len(found)} of 200 records differ"


def test_threads_change_no_bits(rng):
    model, requests = tiny(), company(rng, 60)
    with threads(1):
        one = answers(model, requests)
    with threads(2):
        assert repr(answers(model, requests)) == repr(one)


@pytest.mark.long
def test_eight_hundred_records(rng):
    model = tiny()
    companies = [(800, 800), (800, 33), (500, 3), (800, 767)]
    assert not differing(lambda r, slots: answers(model, r, slots=slots), company(rng, 800), rng, companies)


class LooksAtTheBatch(GPT2):
    """The saboteur: rounds differently when many rows are computed at once."""

    def logits(self, hidden, out=None):
        return super().logits(hidden, out) * np.float32(1 + 1e-6 * len(hidden))

    def best(self, hidden, out=None):
        tokens, logits = super().best(hidden, out)
        return (tokens + (len(hidden) > 3)) % self.config.vocab_size, logits


def test_a_model_that_looks_at_the_batch_is_caught(rng):
    model, requests = tiny(kind=LooksAtTheBatch), company(rng, 80)
    found = differing(lambda r, slots: answers(model, r, slots=slots), requests, rng, [(80, 800)])
    asked = {r.id for r in requests if r.params.logprobs is not None}
    assert asked & found and found - asked, "the saboteur of logits and that of tokens must both be seen"


def test_requests_are_read_as_they_are_needed(rng):
    read = []

    def source():
        for i in range(9000):
            read.append(i)
            yield Request(i, rng.integers(0, V, 3), SamplingParams(temperature=0, max_tokens=1))

    found = Engine(tiny(), memory=1 << 22).run(source())
    next(found)
    assert len(read) < 6000
    assert sum(1 for _ in found) == 8999 and len(read) == 9000


def test_what_was_never_written_is_never_read(rng, monkeypatch):
    """Keys, values, workspaces and scratch begin as NaN: nothing changes."""
    requests = company(rng, 50)
    for dtype in ("float32", "bfloat16"):
        wanted, model = repr(answers(tiny(dtype=dtype), requests, slots=9)), tiny(dtype=dtype)
        empty, made = np.empty, []

        def poisoned(*args, empty=empty, made=made, **options):
            array = empty(*args, **options)
            if array.dtype in (np.float32, np.uint8):  # bytes of ones are NaNs of float32 and of bfloat16
                array.fill(np.nan if array.dtype == np.float32 else 0xFF)
                made.append(array.nbytes // 4)
            return array

        with monkeypatch.context() as patch:
            patch.setattr(np, "empty", poisoned)
            assert repr(answers(model, requests, slots=9)) == wanted
        assert sum(made) > 50_000, "nothing was poisoned"


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_a_record_without_logits_costs_the_others_nothing(value, rng):
    """One token's embedding is no number; the others' prompts share their beginnings with those that hold it."""
    model, poison = tiny(), 42
    model.wte = np.array(model.wte)  # the output matrix was prepared from the sound one
    clean = [Request(r.id, np.where(r.token_ids == poison, 7, r.token_ids), r.params) for r in company(rng, 60)]
    alone = {r.id: answers(model, [r])[0] for r in clean}
    model.wte[poison] = value
    bad = []
    for r in clean[::3]:
        ids = np.array(r.token_ids)
        ids[-1] = poison
        bad += [
            Request(f"bad {r.id}", np.append(r.token_ids, poison), r.params),
            Request(f"bad2 {r.id}", ids, r.params),
        ]
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


def test_bad_prompts_are_tried_again_once(rng):
    """All of them share a beginning: each is computed with it, and then apart."""
    model, passes = tiny(), []
    model.wte = np.array(model.wte)
    model.wte[42] = np.nan
    forward = model.forward
    model.forward = lambda batch, work: (passes.append(len(batch.ids)), forward(batch, work))[1]
    found = answers(model, [Request(i, np.array([42] * 20), SamplingParams(max_tokens=8)) for i in range(30)])
    assert all(one[0].failed for one in found) and passes == [20 + 29, 29 * 20]


def test_logits_that_overflow_fail_the_record():
    """States that are finite, and so large that their logits are not: greedy, sampled, reported."""
    model = tiny()
    model.norm[0][:] = 1e38
    for params in KINDS.values():
        assert all(one.failed for one in answers(model, [Request(0, np.array([1, 2]), params)])[0])
    with pytest.raises(UsageError, match=r"prompt 0 \(counted from 0\): the logits are not finite"):
        list(model.generate([[1, 2]], GREEDY))
    (found,) = model.generate([[1, 2]], GREEDY, errors="record")
    assert found.outputs == [] and found.prompt_token_ids == [1, 2] and "not finite" in str(found.error)


def test_identical_greedy_prompts_are_computed_once(rng):
    model, rows = tiny(), []
    forward = model.forward
    model.forward = lambda batch, work: (rows.append(len(batch.ids)), forward(batch, work))[1]
    ids = rng.integers(0, V, 20)
    found = answers(model, [Request(i, ids, GREEDY) for i in range(50)])
    assert len(found) == 50 and all(repr(one) == repr(found[0]) for one in found)
    assert sum(rows) == 20 + 7
    rows.clear()
    sampled = answers(model, [Request(i, ids, SamplingParams(max_tokens=8)) for i in range(50)])
    assert sum(rows) == 20 + 49 + 50 * 7, "the prompt's keys and values are computed once"
    assert len({tuple(one[0].token_ids) for one in sampled}) > 40


def test_equal_parameters_make_twins_whatever_comes_between(rng, monkeypatch):
    from tilewright.generation import scheduler

    monkeypatch.setattr(scheduler, "WINDOW", 3)  # kinds of parameters that are remembered
    model, rows, ids = tiny(), [], rng.integers(0, V, 20)
    forward = model.forward
    model.forward = lambda batch, work: (rows.append(len(batch.ids)), forward(batch, work))[1]
    params = [SamplingParams(temperature=0, max_tokens=1 + i % 2) for i in range(50)]
    found = answers(model, [Request(i, ids, p) for i, p in enumerate(params)])
    assert [len(one[0].token_ids) for one in found] == [p.max_tokens for p in params] and sum(rows) == 20 + 1 + 1
    params = [SamplingParams(temperature=0, max_tokens=1 + i) for i in range(20)]
    found = answers(model, [Request(i, ids, p) for i, p in enumerate(params)])
    assert [len(one[0].token_ids) for one in found] == list(range(1, 21))


def test_a_prompt_is_named_by_its_place_among_many(rng):
    prompts = rng.integers(0, V, (600, 4))
    wanted = [one.outputs for one in tiny().generate(prompts.tolist(), GREEDY)]
    assert [one.outputs for one in tiny().generate(prompts.astype(np.uint16), GREEDY)] == wanted
    prompts[300, 2] = V
    for given in (prompts, list(prompts), prompts.tolist()):
        with pytest.raises(UsageError, match=rf"prompt 300 \(counted from 0\): token id {V} at 2"):
            list(tiny().generate(given, GREEDY))


def test_seeds_and_ids_name_the_samples(rng):
    model, ids = tiny(), rng.integers(0, V, 9)
    params = SamplingParams(max_tokens=10)

    def tokens(id, params=params, seed=0):
        return [one.token_ids for one in answers(model, [Request(id, ids, params)], seed=seed)[0]]

    assert tokens("a") == tokens("a")
    assert tokens("a") != tokens("b") and tokens("a") != tokens("a", seed=1) and tokens(7) != tokens("7")
    own = SamplingParams(max_tokens=10, seed=5)
    assert tokens("a", own, seed=1) == tokens("a", own, seed=2) == tokens("a", seed=5)
    three = tokens("a", SamplingParams(max_tokens=10, n=3))
    assert len({tuple(one) for one in three}) == 3 and three[0] == tokens("a")[0]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_frequencies_are_the_models(temperature, rng):
    """4,000 records of one prompt, each drawing one token and then another."""
    model, prompt = tiny(vocab_size=6, scale_attn_weights=True), np.array([1, 2, 3])
    params = SamplingParams(max_tokens=2, temperature=temperature)
    found = [one[0].token_ids for one in answers(model, [Request(i, prompt, params) for i in range(4000)])]
    first = odds(logits_of(model, prompt)[-1], temperature)
    pairs = Counter(map(tuple, found))
    expected, seen = [], []
    for a in range(6):
        second = odds(logits_of(model, [*prompt, a])[-1], temperature)
        expected += [4000 * first[a] * second[b] for b in range(6)]
        seen += [pairs[a, b] for b in range(6)]
    expected, seen = np.array(expected), np.array(seen)
    rare = expected < 5  # counted together, as the test wants
    expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
    seen = np.append(seen[~rare], seen[rare].sum())
    keep = expected > 1
    assert keep.sum() > 4
    p = chisquare(seen[keep], expected[keep] * seen[keep].sum() / expected[keep].sum()).pvalue
    assert p > 1e-4, f"p = {p:.2g}: {seen} seen, {expected.round(1)} expected"


def odds(logits: np.ndarray, temperature: float) -> np.ndarray:
    scores = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    return scores / scores.sum()


def alone(params: SamplingParams, ids=(3, 4, 5), **options):
    """The one completion of a prompt."""
    model = tiny(**options)
    model.stop_ids = model.config.stop_ids
    return answers(model, [Request(0, np.array(ids), params)])[0][0]


def test_eos_stop_ids_and_minimum():
    free = alone(GREEDY)
    third, at = free.token_ids[2], free.token_ids.index(free.token_ids[2])
    assert (free.finish_reason, len(free.token_ids)) == ("length", 8)
    ended = alone(GREEDY, eos_token_id=third)
    assert (ended.token_ids, ended.finish_reason) == (free.token_ids[: at + 1], "stop")
    assert alone(GREEDY, eos_token_id=[96, third]).token_ids == ended.token_ids
    ignored = alone(SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), eos_token_id=third)
    assert (ignored.token_ids, ignored.finish_reason) == (free.token_ids, "length")
    stopped = alone(SamplingParams(temperature=0, max_tokens=8, stop_token_ids=(third, 5000)))
    assert (stopped.token_ids, stopped.finish_reason) == (ended.token_ids, "stop")
    waited = alone(SamplingParams(temperature=0, max_tokens=8, min_tokens=6), eos_token_id=third)
    assert third not in waited.token_ids[:6] and len(waited.token_ids) >= 6
    assert waited.token_ids[:at] == free.token_ids[:at]


def test_the_end_of_the_context_is_the_end():
    params = SamplingParams(temperature=0, max_tokens=500)
    for length in (1, 60, 63):
        found = alone(params, ids=[5] * length)
        assert (len(found.token_ids), found.finish_reason) == (CONTEXT - length, "length")
    short = alone(SamplingParams(temperature=0, max_tokens=4), ids=[5] * 60)
    assert short.token_ids == alone(params, ids=[5] * 60).token_ids and short.finish_reason == "length"


def test_logprobs_are_those_of_the_raw_logits():
    params = SamplingParams(temperature=0.7, top_k=5, max_tokens=4, logprobs=3, seed=1)
    found = alone(params)
    rows = logits_of(tiny(), [3, 4, 5, *found.token_ids[:-1]])[2:].astype(np.float64)
    wanted = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    for token, given, row in zip(found.token_ids, found.logprobs, wanted, strict=True):
        best = np.argsort(-row, kind="stable")[:3].tolist()
        assert list(given) == list(dict.fromkeys([token, *best]))
        assert np.float32(list(given.values())).tolist() == pytest.approx(row[list(given)].tolist(), abs=2e-6)
        assert token in np.argsort(-row, kind="stable")[:5]
    assert alone(GREEDY).logprobs is None
    chosen = alone(SamplingParams(temperature=0, max_tokens=4, logprobs=0))
    assert [list(one) for one in chosen.logprobs] == [[token] for token in chosen.token_ids]


def test_stop_strings_cut_the_text():
    model, prompt = tiny(), np.array([3, 4, 5])

    class Letters:
        """Token i is the letter with that number."""

        def decode(self, ids):
            return "".join(chr(0x4E00 + int(i)) for i in ids)

        def encode_word(self, text):
            return [ord(letter) - 0x4E00 for letter in text]

    model.tokenizer = Letters()
    free = next(model.generate([prompt], GREEDY)).outputs[0]
    assert free.text == Letters().decode(free.token_ids) and free.finish_reason == "length"
    stop = free.text[3:5]
    cut = next(model.generate([prompt], SamplingParams(temperature=0, max_tokens=8, stop=("zzz", stop)))).outputs[0]
    end = free.text.index(stop)
    assert (cut.text, cut.finish_reason, cut.token_ids) == (free.text[:end], "stop", free.token_ids[: end + 2])
    model.tokenizer = None
    with pytest.raises(UsageError, match="no tokenizer"):
        list(model.generate([prompt], SamplingParams(stop="x")))


def test_too_little_memory_is_refused_with_the_sizes():
    model = tiny()
    with pytest.raises(
        ResourceError, match=r"of 11 positions take [\d,]+ bytes; 1,000 are allowed.*--max-batch-memory"
    ):
        list(model.generate([[1, 2, 3]], GREEDY, max_batch_memory=1000))


def test_outputs_come_in_the_order_of_the_prompts():
    prompts = [[1], list(range(40)), [2, 3], [1], [5] * 63]
    outputs = list(tiny().generate(prompts, tw.SamplingParams(temperature=0, max_tokens=3)))
    assert [one.prompt_token_ids for one in outputs] == prompts
    assert [len(one.outputs[0].token_ids) for one in outputs] == [3, 3, 3, 3, 1]
    assert list(tiny().generate([])) == []


def test_a_models_next_run_takes_the_caches_of_the_last(rng, monkeypatch):
    model, made = tiny(), []
    empty = Cache.empty
    monkeypatch.setattr(Cache, "empty", lambda *sizes: made.append(sizes) or empty(*sizes))
    prompts, params = company_prompts(rng), SamplingParams(temperature=0, max_tokens=5)
    first = list(model.generate(prompts, params))
    layers = len(made)
    assert layers == TINY["n_layer"]
    assert list(model.generate(prompts, params)) == first
    assert len(made) == layers  # none is new
    turns = zip(model.generate(prompts, params), model.generate(prompts, params), strict=True)
    assert [pair[0] for pair in turns] == first  # two at a time: one has to make its own
    assert len(made) == 2 * layers
    longer = SamplingParams(temperature=0, max_tokens=9)
    assert len(list(model.generate(prompts, longer))) == len(prompts)
    free = model.attention.free
    assert [(cache.slots, cache.length) for cache in free] == [(made[-1][0], 13)] * layers  # short ones are freed


def company_prompts(rng) -> list[list[int]]:
    return [rng.integers(0, TINY["vocab_size"], 4).tolist() for _ in range(6)]
