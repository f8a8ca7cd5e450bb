"""BERT, RoBERTa and DistilBERT against transformers, and the bits of a text in every company."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from bert_models import VOCABULARY, random_texts, saved
from tilewright.errors import InputError, UsageError, WrongType
from tilewright.models.bert import CACHED, ROWS
from tilewright.models.bert_config import BertConfig
from tilewright.models.ragged import Limits, passes, sorted_texts
from tilewright.ops.core.launch import threads
from tilewright.runtime.load import load

FAMILIES = ("bert", "roberta", "distilbert")
QUICK, ALL = range(2), range(2, 10)
RANDOM = [(family, seed) for family in FAMILIES for seed in QUICK]
MORE = [pytest.param(family, seed, marks=pytest.mark.long) for family in FAMILIES for seed in ALL]


def ragged(seed: int, n: int = 30, most: int = 70) -> list[np.ndarray]:
    """Token ids of n texts of 1 to `most` tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(5, VOCABULARY, rng.integers(1, most + 1)) for _ in range(n)]


@pytest.mark.parametrize("family, seed", RANDOM + MORE)
def test_logits_against_transformers(family, seed, tmp_path):
    theirs, _ = saved(family, seed, tmp_path)
    texts = [*ragged(seed), np.full(70, 7), np.array([9])]
    with torch.no_grad():
        expected = np.concatenate([theirs(torch.from_numpy(ids)[None]).logits.numpy() for ids in texts])
    found = load(tmp_path, device="cpu").logits(texts)
    assert found.shape == expected.shape and np.std(expected, axis=0).min() > 1e-3
    assert np.abs(found - expected).max() < 2e-6 * np.abs(expected).max()
    rounded = load(tmp_path, device="cpu", dtype="bfloat16").logits(texts)
    assert 0 < np.abs(rounded - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_depend_on_the_text_alone(dtype, tmp_path):
    saved("bert", 1, tmp_path)
    model, texts = load(tmp_path, device="cpu", dtype=dtype), ragged(3, n=150)
    together = model.logits(texts)
    alone = np.concatenate([model.logits([ids]) for ids in texts])
    backwards = model.logits(texts[::-1])[::-1]
    with threads(1):
        one_thread = model.logits(texts)
    for other in (alone, backwards, one_thread):
        assert np.array_equal(other.view(np.uint32), together.view(np.uint32))


def test_texts_are_cut_as_transformers_cuts_them(tmp_path):
    theirs, words = saved("distilbert", 0, tmp_path)
    texts = [*random_texts(20), "good " * 200]
    answers = load(tmp_path, device="cpu").classify(texts)
    for text, answer in zip(texts, answers, strict=True):
        inputs = words(text, truncation=True, return_tensors="pt", return_token_type_ids=False)
        with torch.no_grad():
            logits = theirs(**inputs).logits[0]
        assert np.abs(np.array(answer["logits"]) - logits.numpy()).max() < 1e-5
        best = int(logits.argmax())
        assert answer["label"] == f"label {best}"
        assert answer["score"] == pytest.approx(float(logits.softmax(-1)[best]), abs=1e-5)


def test_labels_that_do_not_exclude_each_other_have_a_sigmoid(tmp_path):
    saved("bert", 0, tmp_path, problem_type="multi_label_classification")
    (answer,) = load(tmp_path, device="cpu").classify(["a good film"])
    assert answer["score"] == pytest.approx(1 / (1 + np.exp(-max(answer["logits"]))))


def test_padding_tokens_inside_a_text_have_transformers_positions(tmp_path):
    """RoBERTa does not count them; text may hold the padding token by its name."""
    theirs, _ = saved("roberta", 1, tmp_path)
    texts = [np.array([9, 1, 7, 8]), np.array([1, 5]), np.array([6, 7, 1])]
    with torch.no_grad():
        expected = np.concatenate([theirs(torch.from_numpy(ids)[None]).logits.numpy() for ids in texts])
    assert np.abs(load(tmp_path, device="cpu").logits(texts) - expected).max() < 2e-6 * np.abs(expected).max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_checkpoints_of_16_bits(dtype, tmp_path):
    theirs, _ = saved("roberta", 1, tmp_path)
    theirs.to(dtype).save_pretrained(tmp_path)
    texts = ragged(1, n=5)
    wide = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = np.concatenate([wide(torch.from_numpy(ids)[None]).logits.numpy() for ids in texts])
    assert np.abs(load(tmp_path, device="cpu").logits(texts) - expected).max() < 2e-6 * np.abs(expected).max()


def changed(folder, file="config.json", **fields):
    """Changes a file of JSON."""
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is true"),
        ({"model_type": "roberta", "pad_token_id": -5}, "pad_token_id is -5"),
        ({"hidden_act": "swish"}, "hidden_act is 'swish'"),
        ({"num_attention_heads": 5}, "must be a multiple of the heads"),
        ({"problem_type": "regression"}, "only classification"),
        ({"id2label": {"0": "a", "2": "b"}}, "without a gap"),
        ({"num_hidden_layers": 7}, r"tensor encoder\.layer\.\d\.\S+ .* is missing"),
        ({"hidden_size": 10**9}, "tensor"),
    ],
)
def test_configurations_that_are_refused(fields, said, tmp_path):
    saved("bert", 2, tmp_path)
    changed(tmp_path, **fields)
    with pytest.raises(InputError, match=said):
        load(tmp_path, device="cpu")


def test_wrong_texts(tmp_path):
    saved("bert", 0, tmp_path)
    model = load(tmp_path, device="cpu")
    for texts, said in (
        ([[5, VOCABULARY]], "ids of text 0"), ([[5], []], "text 1 has ids"), ([np.full(71, 5)], "1 to 70"),
        ([" "], "text 0 is empty"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            model.classify(texts)
    for texts in ("good", 5):
        with pytest.raises(WrongType, match="a list of texts is wanted"):
            model.classify(texts)
    model.tokenizer = None
    with pytest.raises(UsageError, match="no tokenizer"):
        model.classify(["good"])


def test_a_model_without_a_head_is_refused(tmp_path):
    theirs, _ = saved("bert", 0, tmp_path)
    theirs.bert.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="no classification head"):
        load(tmp_path, device="cpu").classify(["good"])


def test_a_pass_has_few_tokens_and_few_cached_positions():
    rows = ROWS["cpu"]
    lengths = np.array([1] * 3000 + [512] * 3 + [2 * rows])
    found = list(passes(lengths, rows, CACHED * rows))
    assert [first for first, _ in found] == [0, *(end for _, end in found[:-1])] and found[-1][1] == len(lengths)
    for first, end in found:
        sizes = lengths[first:end]
        assert len(sizes) == 1 or (sum(sizes) <= rows and len(sizes) * max(sizes) <= CACHED * rows)


def test_texts_are_sorted_with_their_tokens():
    rng, limits = np.random.default_rng(4), Limits(9, 50)
    rows = [rng.integers(0, 50, n) for n in rng.integers(1, 10, 40)]
    wide = np.full((40, 9), -1)
    for row, ids in zip(wide, rows, strict=True):
        row[: len(ids)] = ids
    for given in (rows, wide, wide.astype(np.int32), [ids.tolist() for ids in rows]):
        every = sorted_texts(given, limits)
        assert (np.diff(every.lengths) >= 0).all() and sorted(every.order) == list(range(40))
        for first, end in ((0, 40), (7, 11)):
            index, ids, lengths = every.part(first, end)
            assert index.tolist() == every.order[first:end].tolist() and lengths.tolist() == [
                len(rows[i]) for i in index
            ]
            assert ids.tolist() == np.concatenate([rows[i] for i in index]).tolist() and ids.dtype == np.int32
    wide[31] = -1
    with pytest.raises(UsageError, match="ids of text 31"):
        sorted_texts(wide, limits)
    assert not len(sorted_texts([], limits).order)


def test_no_token_at_the_end_of_a_text_counts():
    padded = [np.array([3, 4, -1, -1]), np.array([5, 6, 7]), np.array([8, 9, -1])]
    index, ids, lengths = sorted_texts(padded, Limits(9, 50)).part(0, 3)
    assert lengths.tolist() == [2, 2, 3] and index.tolist() == [0, 2, 1] and ids.tolist() == [3, 4, 8, 9, 5, 6, 7]
    with pytest.raises(UsageError, match="ids of text 1"):
        sorted_texts([np.array([3, 1]), np.array([50, 4, 4]), np.array([-2])], Limits(9, 50))
    with pytest.raises(UsageError, match="ids of text 1 is float64"):
        sorted_texts([np.array([3]), np.array([2.0])], Limits(9, 50))


@pytest.mark.parametrize("family", FAMILIES)
def test_pairs_of_texts_against_transformers(family, tmp_path):
    """Short ones, and long ones that lose tokens at the end of the longer text."""
    theirs, words = saved(family, 3, tmp_path)
    names = ["input_ids", *(["token_type_ids"] if family == "bert" else [])]  # as the tokenizer of each family has them
    changed(tmp_path, "tokenizer_config.json", model_input_names=names)
    texts = random_texts(24, 5)
    pairs = [*zip(texts[:12], texts[12:], strict=True), ("good", "film " * 90), ("film " * 90, "good")]
    answers = load(tmp_path, device="cpu").classify([*pairs, "good"])
    assert len({answer["score"] for answer in answers}) > 12
    for pair, answer in zip(pairs, answers[:-1], strict=True):
        inputs = words(*pair, truncation=True, return_tensors="pt", return_token_type_ids=family == "bert")
        assert family != "bert" or inputs["token_type_ids"].any()
        with torch.no_grad():
            logits = theirs(**inputs).logits[0].numpy()
        assert np.abs(np.array(answer["logits"]) - logits).max() < 1e-5
    (alone,) = load(tmp_path, device="cpu").classify([pairs[3]])
    assert alone["logits"] == answers[3]["logits"]
    changed(tmp_path, "tokenizer_config.json", model_input_names=["input_ids"])
    (plain,) = load(tmp_path, device="cpu").classify([pairs[3]])
    assert (plain["logits"] == alone["logits"]) == (family != "bert")
    with pytest.raises(UsageError, match="text 1 is empty"):
        load(tmp_path, device="cpu").classify([pairs[0], ("good", "")])
    with pytest.raises(UsageError, match="text 1 is a pair of texts"):
        load(tmp_path, device="cpu").embed(["good", ("good", "bad")])


def test_a_configuration_without_labels_has_two(tmp_path):
    saved("bert", 0, tmp_path)
    changed(tmp_path, id2label=None)
    with pytest.raises(InputError, match=r"head\.out"):  # the checkpoint has other ones
        load(tmp_path, device="cpu")
    assert BertConfig(id2label=None).labels == {0: "LABEL_0", 1: "LABEL_1"}
