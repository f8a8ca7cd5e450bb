"""The rules that change logits, against NumPy from the raw logits and against transformers' processors."""

import numpy as np
import pytest

from tilewright.errors import UsageError
from tilewright.generation.rules import BadWords, choose
from tilewright.generation.sampling import MAX_ANSWER, MAX_INTEGER, ParameterError, SamplingParams

V = 60
WORDS = {"ab": [1, 2], " ab": [3], "c": [4], " c": [5, 6, 7], "a": [1], " a": [0, 1], " ": [0]}


def words():
    return BadWords(lambda text: WORDS[text])


def greedy(**rules) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=1000, **rules)


def chosen(logits, params, seen=(), step=0, eos=()):
    """The greedy token of one row."""
    return int(choose(logits[None], [params], [0.5], [list(seen)], [step], eos, words()).tokens[0])


def edited(logits, p: SamplingParams, seen, step, eos=()):
    """float32 (V,) by the documented order, one token after the other."""
    completion, found = list(seen)[len(seen) - step :], []
    for token, logit in enumerate(logits.tolist()):
        x = logit + dict(p.logit_bias).get(token, 0.0)
        if token in seen:
            x = x / p.repetition_penalty if x > 0 else x * p.repetition_penalty
        count = completion.count(token)
        x -= p.frequency_penalty * count + p.presence_penalty * (count > 0)
        banned = token in p.suppress_tokens or (step < p.min_tokens and token in {*eos, *p.stop_token_ids})
        if p.allowed_token_ids is not None:
            banned |= token not in p.allowed_token_ids
        for word in p.bad_words:
            for ids in (WORDS[word], WORDS[f" {word}"]):
                banned |= [*completion, token][-len(ids) :] == ids
        if size := p.no_repeat_ngram_size:
            grams = [list(seen)[i : i + size] for i in range(len(seen) - size + 1)]
            banned |= [*seen, token][-size:] in grams
        found.append(-np.inf if banned else x)
    return np.array(found).astype(np.float32)


def some_params(rng) -> SamplingParams:
    """Each rule in a third of all cases, in any company."""
    ids = lambda most: rng.integers(0, V, rng.integers(1, most)).tolist()  # noqa: E731
    every = {
        "logit_bias": {token: float(rng.uniform(-9, 9)) for token in ids(20)},
        "repetition_penalty": float(rng.uniform(0.3, 3)), "frequency_penalty": float(rng.uniform(-2, 2)),
        "presence_penalty": float(rng.uniform(-2, 2)), "suppress_tokens": ids(30), "allowed_token_ids": ids(30),
        "no_repeat_ngram_size": int(rng.integers(1, 4)), "bad_words": [["ab", "c"], ["a"], "c"][rng.integers(3)],
        "min_tokens": int(rng.integers(0, 12)), "stop_token_ids": ids(9),
    }  # fmt: skip
    return greedy(**{name: value for name, value in every.items() if rng.random() < 0.34})


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.long)])
def test_the_rules_apply_in_the_documented_order(rng, count):
    """In batches of 20, greedy ones and samples, which are those of the edited logits without forbidden tokens."""
    differing = 0
    for _ in range(count // 20):
        params, rows = [some_params(rng) for _ in range(20)], rng.normal(0, 3, (20, V)).astype(np.float32)
        prompts = [rng.integers(0, 8, rng.integers(1, 9)).tolist() for _ in range(20)]
        seen = [prompt + rng.integers(0, 8, rng.integers(0, 14)).tolist() for prompt in prompts]
        steps = [len(s) - len(prompt) for s, prompt in zip(seen, prompts, strict=True)]
        for temperature in (0, 0.5):
            given = [SamplingParams(**{**_values(p), "temperature": temperature}) for p in params]
            u = rng.random(20)
            found = choose(rows, given, u, seen, steps, [9], words()).tokens
            wide = [edited(*row, [9]) for row in zip(rows, params, seen, steps, strict=True)]
            for row, token, number in zip(wide, found, u, strict=True):
                left = np.flatnonzero(np.isfinite(row))
                if not len(left):
                    wanted = -1
                elif temperature:
                    plain = SamplingParams(temperature=temperature)
                    wanted = left[choose(row[left][None], [plain], [number], [()], [0]).tokens[0]]
                else:
                    wanted = row.argmax()
                differing += int(token) != int(wanted)
    assert not differing, f"{differing} of {2 * count} tokens differ"


def _values(p: SamplingParams) -> dict:
    return {name: getattr(p, name) for name in p.__dataclass_fields__}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ngrams_are_those_of_transformers(rng, size):
    torch = pytest.importorskip("torch")
    processor = pytest.importorskip("transformers").NoRepeatNGramLogitsProcessor(size)
    for length in (1, 2, 3, 4, 5, 30, 60):
        seen, logits = rng.integers(0, 4, length), rng.normal(0, 3, V).astype(np.float32)
        wanted = processor(torch.from_numpy(seen)[None], torch.from_numpy(logits.copy())[None])[0].numpy()
        for step in (0, length // 2):
            assert chosen(logits, greedy(no_repeat_ngram_size=size), seen, step) == wanted.argmax()
            best = [token for token in np.argsort(-wanted) if np.isfinite(wanted[token])][:1]
            left = greedy(no_repeat_ngram_size=size, suppress_tokens=best)
            assert chosen(logits, left, seen, step) == np.where(np.arange(V) == best[0], -np.inf, wanted).argmax()


def test_suppressed_tokens_are_those_of_transformers(rng):
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers").SuppressTokensLogitsProcessor
    logits = rng.normal(0, 3, V).astype(np.float32)
    for _ in range(20):
        ids = rng.integers(0, V, 40).tolist()
        wanted = process(ids)(torch.zeros((1, 1), dtype=torch.int64), torch.from_numpy(logits.copy())[None])[0]
        assert chosen(logits, greedy(suppress_tokens=ids)) == int(wanted.argmax())


def test_bad_words_end_at_their_last_token_in_the_completion():
    logits = np.zeros(V, np.float32)
    logits[[3, 2, 4]] = 9, 8, 7
    bad = greedy(bad_words="ab")
    assert chosen(logits, bad, [1], 0) == 2, "the prompt is no completion"
    assert chosen(logits, bad, [5, 1], 1) == 4
    assert chosen(logits, bad, [5, 6], 1) == 2
    assert chosen(logits, greedy(bad_words=["ab", "c"]), [5, 1], 1) == 0
    assert chosen(np.eye(V, dtype=np.float32)[0], greedy(bad_words=" "), [5], 0) == 1
    with pytest.raises(UsageError, match="no tokenizer"):
        choose(logits[None], [bad], [0.5], [[1]], [0])


def test_log_probabilities_are_those_of_the_raw_logits(rng):
    logits = rng.normal(0, 3, (1, V)).astype(np.float32)
    every = greedy(logprobs=3, logit_bias={7: 90}, presence_penalty=2, allowed_token_ids=[7, 8], repetition_penalty=3)
    found = choose(logits, [every], [0.5], [[1, 7, 7]], [2])
    wide = logits[0].astype(np.float64)
    logarithms = (wide - np.log(np.exp(wide).sum())).astype(np.float32)
    assert found.tokens[0] == 7 and list(found.logprobs[0]) == [7, *np.argsort(-wide)[:3].tolist()]
    assert all(abs(value - logarithms[token]) < 1e-6 for token, value in found.logprobs[0].items())


def test_no_token_left_is_told(rng):
    logits = rng.normal(0, 3, (2, V)).astype(np.float32)
    none = greedy(allowed_token_ids=[9], suppress_tokens=[9])
    found = choose(logits, [none, greedy()], [0.5] * 2, [[1]] * 2, [0] * 2)
    assert found.tokens[0] == -1 and found.bad.tolist() == [True, False] and found.tokens[1] == logits[1].argmax()


def test_integers_of_any_size_are_taken_or_refused(rng):
    """The largest legal value of every integer: counts beyond all vocabularies and contexts mean all."""
    logits = rng.normal(0, 3, (1, V)).astype(np.float32)
    wanted = choose(logits, [SamplingParams()], [0.3], [[1]], [0]).tokens[0]
    for huge in (2**31, 2**32, 2**63, 2**64, 10**400):
        p = SamplingParams(top_k=huge, max_tokens=huge, no_repeat_ngram_size=huge)
        assert p.top_k == p.max_tokens == p.no_repeat_ngram_size == MAX_INTEGER
        assert choose(logits, [p], [0.3], [[1]], [0]).tokens[0] == wanted
        assert SamplingParams(max_tokens=huge, min_tokens=huge).min_tokens == MAX_INTEGER
        for name in ("n", "logprobs", "temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"):
            if not (name == "repetition_penalty" and huge < 10**300):
                with pytest.raises(ParameterError, match=f"^{name} is "):
                    SamplingParams(**{name: huge})
        for name in ("stop_token_ids", "suppress_tokens", "allowed_token_ids"):
            with pytest.raises(ParameterError, match=f"^{name} is "):
                SamplingParams(**{name: [huge]})
        with pytest.raises(ParameterError, match=r"^logit_bias is "):
            SamplingParams(logit_bias={huge: 1})


def test_lists_are_bounded():
    assert len(SamplingParams(stop=["x", "y"] * 500_000).stop) == 2
    for name in ("stop", "bad_words"):
        for value in (list(map(str, range(1_000_000))), ["x" * 70_000]):
            with pytest.raises(ParameterError, match=f"^{name} is .*at most 1,024 of 65,536 in all"):
                SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"n": 16384, "max_tokens": 8, "logprobs": 20}, "n"),
        ({"n": 2, "max_tokens": 2**63, "logprobs": 20}, "max_tokens"),
        ({"n": 16384, "max_tokens": 65}, "n"),
    ],
)
def test_the_size_of_an_answer_is_bounded(values, name):
    about = {"vocabulary": V, "context": 30_000, "has_tokenizer": True}
    with pytest.raises(ParameterError, match=rf"^{name} is .*n \* max_tokens \* \(logprobs \+ 1\) is .* at most"):
        SamplingParams(**values).check_for(**about)
    SamplingParams(n=MAX_ANSWER // 64, max_tokens=64).check_for(**about)
    SamplingParams(n=2, max_tokens=2**63).check_for(**about)


@pytest.mark.parametrize("name", ["allowed_token_ids", "suppress_tokens", "logit_bias"])
def test_a_token_beyond_the_model_is_refused(name):
    params = SamplingParams(**{name: {V: 1} if name == "logit_bias" else [V]})
    params.check_for(vocabulary=V + 1, context=9, has_tokenizer=False)
    with pytest.raises(ParameterError, match=f"^{name} is .*token {V} is beyond"):
        params.check_for(vocabulary=V, context=9, has_tokenizer=False)
