"""Scores of given texts: transformers' log-probabilities, and the same bits alone, together and without shared
prefixes."""

import numpy as np
import pytest

import decoder_models
import tilewright as tw
from decoder_models import FAMILIES
from gpt2_models import like, peer, peer_logits, tiny
from tilewright.errors import ResourceError, UsageError
from tilewright.generation import scoring
from tilewright.generation.scored_texts import split_pair
from tilewright.models.gpt2 import GPT2, own_name

SMALL = {"vocab_size": 211, "n_positions": 80, "n_embd": 64, "n_layer": 2, "n_head": 2}
V = SMALL["vocab_size"]


def records(rng, count: int) -> list:
    """Pairs of all lengths, questions with several answers, single tokens, and texts alone."""
    found = []
    for i in range(count):
        context = rng.integers(0, V, int(rng.integers(1, 50))).tolist()
        answers = [rng.integers(0, V, int(n)).tolist() for n in rng.integers(1, 25, 3)]
        found += [(context, answer) for answer in answers] if i % 3 else [(context, [int(rng.integers(0, V))])] * 2
        found += [rng.integers(0, V, int(rng.integers(1, 81))).tolist()]
    return found


def as_bits(scores) -> list[tuple]:
    return [(s.token_ids, np.array(s.logprobs, np.float32).tobytes(), s.logprob, s.is_greedy, s.cut) for s in scores]


def wanted_of(other, tokens, start: int) -> tuple[np.ndarray, bool]:
    """(log-probabilities of tokens[start:], whether they are greedy) by transformers, in float64."""
    logits = peer_logits(other, np.asarray(tokens[:-1]))[start - 1 :].astype(np.float64)
    targets = np.asarray(tokens[start:])
    largest = logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(logits - largest).sum(axis=1)) + largest[:, 0]
    return logits[np.arange(len(targets)), targets] - total, bool((logits.argmax(axis=1) == targets).all())


def test_the_log_probabilities_are_those_of_transformers(rng):
    other = peer(**SMALL)
    model, given = like(other), records(rng, 12)
    for record, score in zip(given, model.score(given, prefix_token=3), strict=True):
        context, continuation = record if isinstance(record, tuple) else ([3], record)
        values, greedy = wanted_of(other, [*context, *continuation], len(context))
        assert score.token_ids == list(continuation) and score.is_greedy == greedy
        assert np.abs(np.array(score.logprobs) - values).max() <= 1e-4
        assert abs(score.logprob - values.sum()) <= 1e-4 * len(values)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 10))])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_s_scores_are_those_of_transformers(family, seed, rng, tmp_path):
    other = decoder_models.save(decoder_models.peer(family, seed), tmp_path / "m")
    model = tw.load(tmp_path / "m", device="cpu")
    prompts = decoder_models.ragged(rng, 12)
    given = [(prompt, rng.integers(0, decoder_models.VOCABULARY, 6).tolist()) for prompt in prompts]
    for (context, continuation), score in zip(given, model.score(given), strict=True):
        values, greedy = wanted_of(other, [*context, *continuation], len(context))
        assert np.abs(np.array(score.logprobs) - values).max() <= 1e-4 * max(1, np.abs(values).max())
        assert score.is_greedy == greedy
    alone = [as_bits(model.score([pair]))[0] for pair in given[:4]]
    assert as_bits(model.score(given))[:4] == alone


def test_greedy_continuations_are_greedy(rng):
    model = tiny()
    prompts = [rng.integers(0, 97, n).tolist() for n in (1, 7, 30)]
    outputs = model.generate(prompts, tw.SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0))
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens, said = output.outputs[0].token_ids, output.outputs[0].logprobs
        (score,) = model.score([(prompt, tokens)])
        assert score.is_greedy
        assert np.abs(np.array(score.logprobs) - [one[t] for one, t in zip(said, tokens, strict=True)]).max() <= 1e-5


@pytest.mark.parametrize("memory", [None, 300_000])
def test_a_text_has_the_same_bits_alone_together_and_unshared(memory, rng, monkeypatch):
    other, given = peer(**SMALL), records(rng, 14)
    model = like(other)
    together = as_bits(model.score(given, prefix_token=3, max_batch_memory=memory))
    alone = [as_bits(model.score([record], prefix_token=3))[0] for record in given]
    order = rng.permutation(len(given))
    mixed = as_bits(model.score([given[i] for i in order], prefix_token=3))
    assert together == alone and [together[i] for i in order] == mixed
    arrays = {own_name(name): parameter.detach().numpy() for name, parameter in other.named_parameters()}
    unshared = GPT2(model.config, arrays, without={"prefix-sharing"})
    monkeypatch.setitem(scoring.ROWS, "cpu", 90)
    monkeypatch.setattr(scoring, "WINDOW", 11)
    assert as_bits(unshared.score(given, prefix_token=3)) == together
    assert as_bits(model.score(given, prefix_token=3)) == together
    with tw.threads(1):
        assert as_bits(model.score(given, prefix_token=3)) == together


def test_a_shared_context_is_computed_once(rng, monkeypatch):
    model, rows = tiny(), []
    forward = GPT2.forward
    monkeypatch.setattr(
        GPT2, "forward", lambda self, batch, work: (rows.append(len(batch.ids)), forward(self, batch, work))[1]
    )
    context = rng.integers(0, 97, 40).tolist()
    list(model.score([(context, [i]) for i in range(9)]))
    assert rows == [40], "nine answers of one token read the same tokens"
    rows.clear()
    list(model.score([(context, [i, 5, 6]) for i in range(9)]))
    assert sum(rows) == 39 + 9 * 3, "each answer reads the context's last token, and its own but one"


def test_long_texts_are_refused_or_cut_as_wanted(rng):
    model = tiny()  # 64 positions
    size = model.sizes.context
    context, text = rng.integers(0, 97, size + 9).tolist(), rng.integers(0, 97, 2 * size + 5).tolist()
    for record, says in (
        ((context, [4, 5]), f"text 0 (counted from 0): context and continuation have {size + 11} tokens"),
        (text, f"text 0 (counted from 0): the text has {len(text)} tokens; the model reads {size} at once"),
    ):
        with pytest.raises(UsageError) as error:
            list(model.score([record], prefix_token=1))
        assert says in str(error.value) and "--truncate" in str(error.value)
    pair, alone = model.score([(context, [4, 5]), text], prefix_token=1, truncate=True)
    assert pair.cut == 10 and as_bits([pair])[0][:3] == as_bits(model.score([(context[10:], [4, 5])]))[0][:3]
    assert alone.token_ids == text
    windows = [
        ([1], text[:size]),
        ([text[size - 1]], text[size : 2 * size]),
        (text[size + 4 : 2 * size], text[2 * size :]),
    ]
    assert alone.logprobs == [value for score in model.score(windows) for value in score.logprobs]


@pytest.mark.parametrize("wrong", ["5", 1.5, True, [3]])
def test_a_prefix_token_is_a_token_id(wrong):
    with pytest.raises(TypeError, match=r"prefix_token is .*; a token id is wanted"):
        tiny().score([[1, 2]], prefix_token=wrong)


def test_an_empty_context_is_the_prefix_token(rng):
    model = tiny()
    empty, given = model.score([([], [5, 6]), ([7], [5, 6])], prefix_token=7)
    assert empty == given
    if not model.stop_ids:
        with pytest.raises(UsageError, match="no end-of-text token to begin with"):
            list(model.score([[5, 6]]))


@pytest.mark.parametrize(("record", "says"), [
    (([1, 2], []), "text 1 (counted from 0): the continuation has no token of its own"),
    (([1], [2], [3]), "it has 3 parts; a pair (context, continuation) is wanted"),
    (([1], [97]), "it has token id 97; ids are 0 to 96"),
    (([1.5], [3]), "it is float64 of shape (1,); a text or integer token ids (n,) are wanted"),
    ("text", "it is text, and the model has no tokenizer.json"),
    (("text", "more"), "it is text, and the model has no tokenizer.json"),
    ([], "the text has no token; at least one is wanted"),
])  # fmt: skip
def test_what_cannot_be_scored_is_named(record, says):
    with pytest.raises(UsageError) as error:
        list(tiny().score([([1], [2]), record], prefix_token=1))
    assert says in str(error.value)


def test_errors_may_be_recorded_in_the_place_of_their_texts():
    model, texts = tiny(), [[], ([1], [2]), ([1], [97]), "text", ([1, 2], [3, 4]), ([1], [])]
    found = list(model.score(texts, prefix_token=1, errors="record"))
    names = [f"text {i} (counted from 0): " for i in range(6)]
    assert [str(score.error).startswith(name) for score, name in zip(found, names, strict=True)] == [
        True, False, True, True, False, True,
    ]  # fmt: skip
    assert [found[1], found[4]] == list(model.score([texts[1], texts[4]], prefix_token=1))
    assert found[0].token_ids == [] and np.isnan(found[0].logprob)
    assert [len(list(model.score(bad, errors="record"))) for bad in ([], ["text"], ["text", "text"])] == [0, 1, 2]
    with pytest.raises(UsageError, match='errors is \'ignore\'; "raise" and "record" are known'):
        model.score([], errors="ignore")


def test_wrong_options_are_refused():
    model = tiny()
    with pytest.raises(UsageError, match="texts is a str; a list of texts or of pairs is wanted"):
        model.score("one text")
    with pytest.raises(UsageError, match="prefix_token is 97; the model's tokens are 0 to 96"):
        model.score([], prefix_token=97)
    with pytest.raises(ResourceError, match="Allow more memory"):
        list(model.score([([1], [2])], max_batch_memory=10))


def test_a_pass_whose_answers_are_lost_is_computed_again(rng, monkeypatch):
    """An error of a GPU may come from a pass that was queued earlier than the one that is halved."""
    model, lost = like(peer(**SMALL)), []
    given = [(rng.integers(0, 200, n).tolist(), [5, 6]) for n in range(3, 40)]
    wanted = as_bits(model.score(given))
    compute = model.logprobs

    def logprobs(hidden, targets):
        found, number = compute(hidden, targets), len(lost)
        lost.append(len(targets))

        def answers():
            if number == 1:
                raise MemoryError
            return found()

        return answers

    def halving(run, batch):
        try:
            return run(batch)
        except MemoryError:
            return run(batch // 2)

    monkeypatch.setattr(model, "logprobs", logprobs)
    monkeypatch.setattr(model.backend, "halving", halving)
    monkeypatch.setitem(scoring.IN_FLIGHT, "cpu", 2)
    monkeypatch.setitem(scoring.ROWS, "cpu", 90)
    assert as_bits(model.score(given)) == wanted and len(lost) > 4


def test_a_text_that_is_not_finite_spoils_no_other(rng):
    other = peer(**SMALL)
    model = like(other)
    model.wte = model.wte.copy()
    model.wte[200] = np.inf
    prefix = rng.integers(0, 200, 30).tolist()
    right = as_bits(model.score([(prefix, [5, 6])]))
    wrong = [(prefix, [200, 5]), (prefix, [4, 200, 9])]
    scorer = model.scorer()
    limits = model.scoring_limits(truncate=False, prefix_token=1)
    pieces = [limits.of_pair(*pair) for pair in (wrong[0], (prefix, [5, 6]), wrong[1])]
    list(scorer.run(one for piece in pieces for one in piece.wanted))
    assert [piece.failed for piece in pieces] == [True, False, True]
    assert as_bits([pieces[1].score()]) == right
    with pytest.raises(UsageError, match=r"text 1 \(counted from 0\): its log-probabilities are not finite"):
        list(model.score([(prefix, [5, 6]), wrong[0]]))
    found = list(model.score([wrong[0], (prefix, [5, 6]), wrong[1]], errors="record"))
    assert [score.error is not None for score in found] == [True, False, True] and as_bits(found[1:2]) == right


def test_spaces_at_the_end_of_a_context_belong_to_the_continuation():
    def encode(text):
        return [ord(c) for c in text]

    assert split_pair("ab ", "c", encode) == ([97, 98], [32, 99])
    assert split_pair("  ", "c", encode) == ([], [32, 32, 99])
