"""Parameters against their rules, draws against a plain full sort, and frequencies."""

import math
from dataclasses import asdict

import numpy as np
import pytest

from tilewright.errors import UsageError
from tilewright.generation.random_numbers import BLOCK, philox, stream, uniform, uniforms
from tilewright.generation.rules import choose
from tilewright.generation.sampling import ParameterError, SamplingParams

V = 3000  # many vectors and buckets
GREEDY = SamplingParams(temperature=0)


def test_defaults_are_vllms():
    assert asdict(SamplingParams()) == {
        "n": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": (),
        "bad_words": (),
        "allowed_token_ids": None,
        "suppress_tokens": (),
        "no_repeat_ngram_size": 0,
        "seed": None,
        "stop": (),
        "stop_token_ids": (),
        "include_stop_str_in_output": False,
        "ignore_eos": False,
        "max_tokens": 16,
        "min_tokens": 0,
        "logprobs": None,
    }


WRONG = [
    ("n", 0, "from 1"),
    ("n", True, "an integer"),
    ("n", 16385, "16384"),
    ("temperature", -0.1, "from 0 to 2"),
    ("temperature", 2.1, "from 0 to 2"),
    ("temperature", math.nan, "from 0 to 2"),
    ("temperature", "hot", "'hot'"),
    pytest.param("temperature", 10**5000, "16610 bits", id="huge"),
    ("top_p", 0, "above 0"),
    ("top_p", 1.01, "at most 1"),
    ("top_p", True, "a number"),
    ("top_k", -2, "at least 1, or 0"),
    ("top_k", 5.0, "an integer"),
    ("min_p", -1e-9, "from 0 to 1"),
    ("min_p", 1.5, "from 0 to 1"),
    ("repetition_penalty", 0, "from 1e-9 to 1e9"),
    ("repetition_penalty", math.inf, "from 1e-9 to 1e9"),
    ("presence_penalty", 2.1, "from -2 to 2"),
    ("frequency_penalty", -3, "from -2 to 2"),
    ("logit_bias", {"x": 1}, "token ids"),
    ("logit_bias", {5: 101}, "from -100 to 100"),
    ("logit_bias", {5: math.nan}, "from -100 to 100"),
    ("logit_bias", {5: True}, "a number"),
    ("logit_bias", {-1: 1}, "token ids"),
    ("logit_bias", {"5": 1, 5: 2}, "token ids"),
    ("logit_bias", 7, "token ids"),
    ("bad_words", ["a", ""], "none empty"),
    ("bad_words", ["\ud800"], "strings"),
    ("allowed_token_ids", [], "at least one"),
    ("allowed_token_ids", [2**31], "token ids"),
    ("suppress_tokens", "5", "token ids"),
    ("no_repeat_ngram_size", -1, "or 0 for none"),
    ("include_stop_str_in_output", 1, "true or false"),
    ("seed", 2**64, "64 bits"),
    ("seed", 1.0, "an integer"),
    ("stop", "", "none empty"),
    ("stop", ["a", ""], "none empty"),
    ("stop", [b"a"], "strings"),
    ("stop", 7, "strings"),
    ("stop_token_ids", [-1], "from 0"),
    ("stop_token_ids", [True], "token ids"),
    ("stop_token_ids", "5", "token ids"),
    ("ignore_eos", 1, "true or false"),
    ("max_tokens", 0, "at least 1"),
    ("max_tokens", "8", "an integer"),
    ("max_tokens", None, "an integer"),
    ("min_tokens", -1, "at least 0"),
    ("min_tokens", 17, "at most max_tokens, 16"),
    ("logprobs", -1, "from 0 to 20"),
    ("logprobs", 21, "from 0 to 20"),
    ("logprobs", True, "an integer"),
]


@pytest.mark.parametrize(("name", "value", "rule"), WRONG)
def test_a_wrong_value_is_refused_with_its_name_and_rule(name, value, rule):
    with pytest.raises(UsageError, match=f"^{name} is ") as refused:
        SamplingParams(**{name: value})
    assert rule in str(refused.value) and len(str(refused.value)) < 200


def test_values_become_plain_and_equal():
    given = SamplingParams(temperature=np.float32(1), top_k=-1, seed=-1, stop="ab", stop_token_ids=[np.int64(3), 3])
    assert given == SamplingParams(stop=("ab",), stop_token_ids=(3,))
    assert type(given.stop_token_ids[0]) is int and type(given.temperature) is float
    assert hash(given) == hash(SamplingParams(stop=["ab"], stop_token_ids=3))
    with pytest.raises(UsageError, match="n is 2; 1 with temperature 0"):
        SamplingParams(n=2, temperature=0)


def test_hugging_face_names():
    given = SamplingParams.of(
        max_new_tokens=9,
        min_new_tokens=2,
        num_return_sequences=3,
        eos_token_id=[5, 6],
        do_sample=True,
        stop_strings="x",
    )
    assert given == SamplingParams(max_tokens=9, min_tokens=2, n=3, stop_token_ids=(5, 6), stop=("x",))
    assert SamplingParams.of(do_sample=False, temperature=0.7, top_p=None).greedy
    assert SamplingParams.of(eos_token_id=5).stop_token_ids == (5,)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temprature": 1}, "'temprature' is no sampling parameter; the nearest is temperature"),
        ({"max_token": 1}, "the nearest is max_tokens"),
        ({"max_tokens": 4, "max_new_tokens": 4}, "max_tokens and max_new_tokens are the same"),
        ({"do_sample": 1}, "do_sample is 1"),
        ({"do_sample": True, "temperature": 0}, "which is greedy"),
    ],
)
def test_names_that_cannot_be_taken(values, message):
    with pytest.raises(UsageError, match=message):
        SamplingParams.of(**values)


def test_a_record_overrides_the_job():
    job = SamplingParams(temperature=0.5, max_tokens=8, min_tokens=4, stop=("a",))
    assert job.merged({}) is job and job.merged({"stop": None}) is job
    assert job.merged({"max_new_tokens": 5, "stop": []}) == SamplingParams(temperature=0.5, max_tokens=5, min_tokens=4)
    with pytest.raises(UsageError, match="min_tokens is 4; at most max_tokens, 3"):
        job.merged({"max_tokens": 3})


KNOWN = [  # Random123's kat_vectors: counter, key, words
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def test_philox_gives_the_published_words():
    counters, keys, wanted = (
        np.array([[int(word, 16) for word in row.split()] for row in column], np.uint32)
        for column in zip(*KNOWN, strict=True)
    )
    words = philox(counters, keys)
    assert words.dtype == np.uint32 and np.array_equal(words, wanted)


def test_a_number_depends_on_its_name_alone():
    names = [(s, r, i, t) for s in (0, 1, -1, 2**64 - 1) for r in (7, "7", "s") for i in (0, 1) for t in (0, 1, 2**32)]
    alone = np.array([uniform(*name) for name in names])
    assert len(set(alone)) == len(names)
    streams, steps = np.array([stream(s, r, i) for s, r, i, _ in names]), np.array([t for *_, t in names])
    assert np.array_equal(uniforms(streams, steps), alone)
    lines = uniforms(streams, np.stack([steps, steps + 1] * BLOCK)[: 2 * BLOCK // len(names) + 3])
    assert np.array_equal(lines[-2:], lines[1:3] if len(lines) % 2 else lines[:2]), "blocks of lines do not show"
    assert np.array_equal(lines[0], alone) and np.array_equal(lines[1], uniforms(streams, steps + 1))
    assert alone[0] == 0.14841188185689858, "published draws changed: jobs that resume would disagree"


def test_numbers_stay_inside_zero_and_one(monkeypatch):
    streams = np.array([stream(1, 0, 0)] * 2)
    for word, bound in ((0, 2.0**-53), (2**32 - 1, 1 - 2.0**-53)):
        monkeypatch.setattr(
            "tilewright.generation.random_numbers._philox", lambda *words, w=word: [np.full((1, 2), w, np.uint64)] * 4
        )
        assert (uniforms(streams, [0, 1]) == bound).all()


def prefix(logits, p: SamplingParams) -> tuple[list[int], np.ndarray, int]:
    """(top_k's tokens by a plain sort, the running sums of their weights, how many top_p and min_p keep)."""
    order = sorted(range(len(logits)), key=lambda t: (-logits[t], t))[: p.top_k or None]
    wide = logits.astype(np.float64)
    weights = np.exp((wide - wide.max()) / p.temperature)[order]
    sums, kept = np.cumsum(weights), int((weights >= p.min_p).sum())
    if p.top_p < 1:
        kept = min(kept, int((sums < p.top_p * sums[-1]).sum()) + 1)
    return order, sums, kept


def reference(logits, p: SamplingParams, u: float) -> int:
    order, sums, kept = prefix(logits, p)
    return order[np.searchsorted(sums[:kept], u * sums[kept - 1])]


def beside(logits, p: SamplingParams, u: float, token: int) -> float:
    order, sums, kept = prefix(logits, p)  # by how much of the sum u's place lies outside of the token's part of it
    at, target = order.index(token), u * sums[kept - 1]
    return max((sums[at - 1] if at else 0) - target, target - sums[at]) / sums[-1]


def rows_of_logits(rng) -> np.ndarray:
    """float32 (6, V): peaked, wide, tied on a grid, all equal, two levels, and signed zeros."""
    peaked, wide = rng.normal(0, 4, V), rng.normal(0, 0.1, V)
    levels = np.where(np.arange(V) % 3 == 1, 2.0, -2.0)
    zeros = np.where(rng.random(V) < 0.5, -0.0, 0.0)
    return np.array([peaked, wide, np.round(peaked), np.full(V, -3.0), levels, zeros], np.float32)


@pytest.mark.parametrize("top_k", [0, 1, 7, 1024, V - 1, V, V + 5])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 1e-9, 1 - 1e-16])
@pytest.mark.parametrize("min_p", [0.0, 0.02, 0.9, 1.0])
def test_draws_are_those_of_a_full_sort(top_k, top_p, min_p, rng):
    logits = rows_of_logits(rng)
    p = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p, temperature=0.8)
    for u in (2.0**-53, 0.37, 0.93):
        tokens = choose(logits, [p] * 6, np.full(6, u), [()] * 6, [0] * 6).tokens
        assert tokens.tolist() == [reference(row, p, u) for row in logits], f"u = {u}"
    u = 1 - 2.0**-53  # within rounding of every sum's end
    tokens = choose(logits, [p] * 6, np.full(6, u), [()] * 6, [0] * 6).tokens
    assert all(beside(row, p, u, token) < 1e-14 for row, token in zip(logits, tokens, strict=True))


def test_top_k_top_p_and_min_p_keep_what_they_should():
    probabilities = np.array([0.1, 0.4, 0.1, 0.3, 0.1])
    logits = np.log(np.tile(probabilities, (2000, 1))).astype(np.float32)
    u = (np.arange(2000) + 0.5) / 2000

    def kept(**values) -> set[int]:
        found = choose(logits, [SamplingParams(**values)] * 2000, u, [()] * 2000, [0] * 2000).tokens
        return set(found.tolist())

    assert kept() == {0, 1, 2, 3, 4}
    assert kept(top_k=3) == {0, 1, 3}, "of equals the lower id"
    assert kept(top_p=0.65) == {1, 3}
    assert kept(top_p=0.75) == {0, 1, 3}
    assert kept(top_p=0.01) == {1}
    assert kept(min_p=0.5) == {1, 3}
    assert kept(min_p=0.2) == {0, 1, 2, 3, 4}
    assert kept(top_k=2, top_p=0.56) == {1}, "0.4 of the two best's 0.7 reaches 0.56"
    assert kept(temperature=0.5, min_p=0.2) == {1, 3}, "temperature comes first"


@pytest.mark.parametrize(("values", "kept"), [({}, 10), ({"top_k": 6}, 6), ({"top_p": 0.8, "temperature": 1.5}, None)])
def test_frequencies_are_the_probabilities(values, kept):
    """Chi-square over 20,000 draws of a record's completions; 27.88 is passed once in a thousand with 9 degrees."""
    rng = np.random.default_rng(8)
    logits = rng.normal(0, 1, 10).astype(np.float32)
    p = SamplingParams(**values)
    draws = 20_000
    u = uniforms(np.array([stream(11, "record", i) for i in range(draws)]), np.full(draws, 3))
    tokens = choose(np.tile(logits, (draws, 1)), [p] * draws, u, [()] * draws, [0] * draws).tokens
    weights = np.exp(logits.astype(np.float64) / p.temperature)
    order = np.argsort(-weights)
    if kept is None:
        kept = int(np.searchsorted(np.cumsum(weights[order]), p.top_p * weights.sum())) + 1
    expected = np.zeros(10)
    expected[order[:kept]] = weights[order[:kept]] / weights[order[:kept]].sum() * draws
    counts = np.bincount(tokens, minlength=10)
    assert not counts[expected == 0].any()
    chosen = expected > 0
    assert ((counts - expected)[chosen] ** 2 / expected[chosen]).sum() < 27.88


MIXED = [
    GREEDY,
    SamplingParams(logprobs=3),
    SamplingParams(top_k=40, temperature=0.7, logprobs=0),
    SamplingParams(top_p=0.9, repetition_penalty=1.3),
    SamplingParams(min_p=0.1, min_tokens=4, stop_token_ids=(1, 2)),
]


def test_a_row_draws_the_same_in_any_company(rng):
    logits = rng.normal(0, 3, (40, V)).astype(np.float32)
    params = [MIXED[i % 5] for i in range(40)]
    u, seen, steps = rng.random(40), rng.integers(0, V, (40, 30)), rng.integers(0, 8, 40)

    def drawn(rows) -> list[tuple]:
        args = [params[i] for i in rows], u[rows], [seen[i] for i in rows], steps[rows], (0,)
        tokens, logprobs, bad = choose(logits[rows], *args)
        assert not bad.any()
        return list(zip(tokens.tolist(), logprobs, strict=True))

    whole = drawn(np.arange(40))
    assert [drawn(np.array([i]))[0] for i in range(40)] == whole
    for size in (2, 7, 40):
        rows = rng.permutation(40)[:size]
        assert drawn(rows) == [whole[i] for i in rows]
    logits[1::2] = np.nan  # poisoned neighbours
    tokens, _, bad = choose(logits, params, u, seen, steps, (0,))
    assert bad.tolist() == [False, True] * 20 and (tokens[1::2] == -1).all()
    assert tokens[::2].tolist() == [token for token, _ in whole[::2]]


def test_a_temperature_near_zero_is_greedy(rng):
    logits = rng.normal(0, 1, (50, V)).astype(np.float32)
    logits[0, [70, 700]] = 9
    greedy = choose(logits, [GREEDY] * 50, np.zeros(50), [()] * 50, [0] * 50).tokens
    assert greedy[0] == 70 and np.array_equal(greedy, logits.argmax(axis=1))
    for temperature in (1e-9, 5e-324):
        params = [SamplingParams(temperature=temperature)] * 50
        assert np.array_equal(choose(logits, params, np.full(50, 0.4), [()] * 50, [0] * 50).tokens, greedy)
    best = choose(logits, [SamplingParams(top_k=1, temperature=2)] * 50, rng.random(50), [()] * 50, [0] * 50)
    assert np.array_equal(best.tokens, greedy)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_logit_that_is_no_number_makes_a_bad_row(value):
    logits = np.zeros((3, 10), np.float32)
    logits[1, 4] = value
    for p in (GREEDY, *MIXED[1:4]):
        tokens, logprobs, bad = choose(logits, [p] * 3, np.full(3, 0.5), [[3]] * 3, [0] * 3)
        assert bad.tolist() == [False, True, False] and tokens[1] == -1 and logprobs[1] is None


def test_repetition_penalty_divides_and_multiplies():
    logits = np.array([[3.0, 2.0, -1.0, -1.5]], np.float32)

    def best(penalty, seen) -> int:
        p = SamplingParams(temperature=0, repetition_penalty=penalty)
        return int(choose(logits, [p], [0.5], [np.array(seen, int)], [1]).tokens[0])

    assert best(1.4, [0, 0, 0]) == 0, "a token seen three times is penalised once"
    assert best(1.6, [0]) == 1
    assert best(3.0, [0, 1]) == 0
    assert best(1.6, []) == 0
    logits -= 4  # all negative: -1, -2, -5, -5.5
    assert best(1.9, [0]) == 0 and best(2.1, [0]) == 1
    assert logits[0, 0] == -1, "the caller's logits stay as they are"


def test_penalty_matches_transformers_rule(rng):
    logits = rng.normal(0, 2, (1, 10)).astype(np.float32)
    p, seen = SamplingParams(repetition_penalty=1.7), np.array([1, 4, 4, 9])
    changed = logits[0].copy()
    for t in set(seen.tolist()):
        changed[t] = changed[t] / np.float32(1.7) if changed[t] > 0 else changed[t] * np.float32(1.7)
    for u in (np.arange(200) + 0.5) / 200:
        assert choose(logits, [p], [u], [seen], [0]).tokens[0] == reference(changed, SamplingParams(), u)


def test_an_infinity_out_of_the_penalty_is_a_bad_row():
    p = SamplingParams(repetition_penalty=1e-9)
    assert choose(np.full((1, 4), 1e30, np.float32), [p], [0.5], [np.array([2])], [0]).bad.tolist() == [True]


def test_min_tokens_keeps_ends_away():
    logits = np.array([[9.0, 8.0, 7.0, 6.0]] * 3, np.float32)
    p = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(1, 99), ignore_eos=True)
    assert choose(logits, [p] * 3, np.zeros(3), [()] * 3, [0, 1, 2], (0,)).tokens.tolist() == [2, 2, 0]
    all_stop = SamplingParams(min_tokens=1, stop_token_ids=(1, 2, 3))
    chosen = choose(logits, [all_stop] * 3, np.full(3, 0.5), [()] * 3, [0, 0, 1], (0,))
    assert chosen.bad.tolist() == [True, True, False]


def test_log_probabilities_are_of_the_raw_logits():
    logits = np.array([[1.0, 3.0, 3.0, -2.0]], np.float32)
    expected = logits[0] - np.log(np.exp(logits[0].astype(np.float64)).sum())
    p = SamplingParams(top_k=2, temperature=0.1, repetition_penalty=50, logprobs=2)
    tokens, (found,), _ = choose(logits, [p], [0.9], [np.array([1, 2])], [0])
    assert tokens[0] == 0 and list(found) == [0, 1, 2]
    assert found == {t: float(np.float32(expected[t])) for t in (0, 1, 2)}
    _, (alone,), _ = choose(logits, [SamplingParams(temperature=0, logprobs=0)], [0.9], [()], [0])
    assert list(alone) == [1]
    _, (every,), _ = choose(logits, [SamplingParams(temperature=0, logprobs=20)], [0.9], [()], [0])
    assert list(every) == [1, 2, 0, 3] and sum(map(math.exp, every.values())) == pytest.approx(1)


def test_parts_of_other_lengths_are_refused():
    with pytest.raises(UsageError, match=r"logits has shape \(2, 4\).*\[2, 1, 2, 2\] rows"):
        choose(np.zeros((2, 4), np.float32), [GREEDY] * 2, [0.5], [()] * 2, [0] * 2)


def test_token_ids_and_biases_are_shown_as_json():
    """As a record has them, not as they are stored."""
    for given, words in [
        ({"logit_bias": {"5": 200}}, '{"5": 200}'),
        ({"logit_bias": {"9": 1, "5": -0.5}}, '{"5": -0.5, "9": 1}'),
        ({"suppress_tokens": [9, 1]}, "[9, 1]"),
    ]:
        with pytest.raises(ParameterError) as refused:
            SamplingParams(**given).check_for(vocabulary=8, context=99, has_tokenizer=True)
        assert refused.value.value == words
