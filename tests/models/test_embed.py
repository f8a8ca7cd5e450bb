"""`embed` against sentence-transformers and transformers, the bits of a text in every company, and what is refused."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from bert_models import random_texts, saved, tokenizer
from sentence_models import POOLINGS, PROMPTS, saved_sentences
from tilewright.errors import InputError, UsageError, WrongType
from tilewright.ops.core.launch import threads
from tilewright.runtime.load import load

FAMILIES = ("bert", "roberta", "distilbert")
RANDOM = [pytest.param(family, seed, marks=[] if seed < 1 else pytest.mark.long) for family in FAMILIES
          for seed in range(10)]  # fmt: skip


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, as a share of the largest element."""
    assert found.shape == expected.shape and found.dtype == np.float32 and np.std(expected, axis=0).min() > 1e-4
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("family, seed", RANDOM)
def test_vectors_against_sentence_transformers(family, seed, tmp_path):
    theirs = saved_sentences(family, seed, tmp_path / "m")
    texts = [*random_texts(12, seed), "good", "bad " * 200]
    model = load(tmp_path / "m", device="cpu")
    assert difference(model.embed(texts), theirs.encode(texts)) < 3e-6
    for name in PROMPTS:
        assert difference(model.embed(texts, prompt_name=name), theirs.encode(texts, prompt_name=name)) < 3e-6
    rounded = load(tmp_path / "m", device="cpu", dtype="bfloat16").embed(texts)
    assert 0 < difference(rounded, theirs.encode(texts)) < 0.1


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_500_texts_of_1_to_512_tokens(family, tmp_path):
    saved(family, 3, tmp_path, max_position_embeddings=514)
    lengths = np.random.default_rng(5).integers(1, 513, 500)
    texts = [np.random.default_rng(i).integers(5, 97, n) for i, n in enumerate(lengths)]
    own = AutoModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = np.stack([own(torch.from_numpy(ids)[None]).last_hidden_state[0].mean(0).numpy() for ids in texts])
    model = load(tmp_path, device="cpu")
    together = model.embed(texts)
    assert difference(together, expected) < 3e-6
    for chosen in (slice(0, 40, 3), slice(100, 300), slice(499, 0, -7)):
        assert np.array_equal(model.embed(texts[chosen]).view(np.uint32), together[chosen].view(np.uint32))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_depend_on_the_text_alone(dtype, tmp_path):
    saved_sentences("roberta", 4, tmp_path / "m", poolings=["mean", "weightedmean", "max"])
    model, texts = load(tmp_path / "m", device="cpu", dtype=dtype), random_texts(70, 3)
    together = model.embed(texts)
    with threads(1):
        one_thread = model.embed(texts)
    others = [np.concatenate([model.embed([text]) for text in texts]), model.embed(texts[::-1])[::-1], one_thread]
    for other in others:
        assert np.array_equal(other.view(np.uint32), together.view(np.uint32))


@pytest.mark.parametrize("pooling", [*POOLINGS[:2], *(pytest.param(p, marks=pytest.mark.long) for p in POOLINGS[2:])])
def test_a_prompt_that_is_not_pooled(pooling, tmp_path):
    theirs = saved_sentences("bert", 5, tmp_path / "m", poolings=[pooling], include_prompt=False,
                             default_prompt_name="query")  # fmt: skip
    model, texts = load(tmp_path / "m", device="cpu"), random_texts(8)
    for options in ({}, {"prompt": ""}, {"prompt": "the very dull plot "}, {"prompt_name": "passage"}):
        assert difference(model.embed(texts, **options), theirs.encode(texts, **options)) < 3e-6


def test_a_directory_without_modules_gives_the_mean(tmp_path):
    saved("distilbert", 6, tmp_path)
    words, texts = tokenizer(), random_texts(6)
    own = AutoModel.from_pretrained(tmp_path).eval()
    expected = []
    for text in texts:
        inputs = words(text, truncation=True, return_tensors="pt", return_token_type_ids=False)
        with torch.no_grad():
            expected.append(own(**inputs).last_hidden_state[0].mean(0).numpy())
    model = load(tmp_path, device="cpu")
    assert difference(model.embed(texts), np.stack(expected)) < 3e-6
    ids = [words(text, truncation=True)["input_ids"] for text in texts]
    assert np.array_equal(model.embed(ids), model.embed(texts))
    assert model.embed([]).shape == (0, expected[0].size)


def test_vectors_that_are_cut_are_scaled_again(tmp_path):
    theirs = saved_sentences("bert", 0, tmp_path / "m", poolings=["mean"])
    model, texts = load(tmp_path / "m", device="cpu"), random_texts(6)
    for normalized in (True, False):
        modules = json.loads((tmp_path / "m" / "modules.json").read_text())
        kinds = [module["type"].rpartition(".")[2] for module in modules]
        if normalized != ("Normalize" in kinds):
            path = "sentence_transformers.base.modules.normalize.Normalize"
            keep = [module for module in modules if not module["type"].endswith("Normalize")]
            modules = [*keep, {"idx": 9, "name": "9", "path": "9_Normalize", "type": path}] if normalized else keep
            (tmp_path / "m" / "modules.json").write_text(json.dumps(modules))
            theirs, model = type(theirs)(str(tmp_path / "m"), device="cpu"), load(tmp_path / "m", device="cpu")
        found = model.embed(texts, dimensions=5)
        assert difference(found, theirs.encode(texts, truncate_dim=5, normalize_embeddings=normalized)) < 3e-6
        assert np.allclose(np.linalg.norm(found, axis=1), 1) == normalized
    for wrong, said in ((0, "1 to"), (10**6, "1 to"), (2.5, "an integer"), (True, "an integer")):
        with pytest.raises(UsageError, match=said):
            model.embed(texts, dimensions=wrong)


def test_old_names_of_fields_and_limits(tmp_path):
    """As sentence-transformers wrote directories before version 6."""
    saved_sentences("bert", 1, tmp_path / "m", poolings=["max", "mean"])
    (tmp_path / "m" / "sentence_bert_config.json").unlink(missing_ok=True)
    (tmp_path / "m" / "sentence_albert_config.json").write_text('{"max_seq_length": 9, "do_lower_case": true}')
    names = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    pooling = json.loads((tmp_path / "m" / "1_Pooling" / "config.json").read_text())
    old = {f"pooling_mode_{name}": name in ("max_tokens", "mean_tokens") for name in names}
    old["word_embedding_dimension"] = pooling["embedding_dimension"]
    (tmp_path / "m" / "1_Pooling" / "config.json").write_text(json.dumps(old))
    theirs = type(saved_sentences("bert", 1, tmp_path / "other"))(str(tmp_path / "m"), device="cpu")
    texts = ["GOOD film", *random_texts(5)]
    model = load(tmp_path / "m", device="cpu")
    assert difference(model.embed(texts), theirs.encode(texts)) < 3e-6
    assert np.array_equal(model.embed(["Good " * 7]), model.embed(["good " * 50]))


def test_texts_that_lose_their_start(tmp_path):
    theirs = saved_sentences("bert", 2, tmp_path / "m", poolings=["mean"])
    name = tmp_path / "m" / "tokenizer_config.json"
    name.write_text(json.dumps(json.loads(name.read_text()) | {"truncation_side": "left", "model_max_length": 20}))
    theirs = type(theirs)(str(tmp_path / "m"), device="cpu")
    texts = random_texts(6)
    assert difference(load(tmp_path / "m", device="cpu").embed(texts), theirs.encode(texts)) < 3e-6


def test_a_long_text_that_loses_its_start_keeps_its_end(tmp_path):
    """Only the first 256 characters per token were read, so the end of a longer text was never seen."""
    saved("bert", 0, tmp_path)
    name = tmp_path / "tokenizer_config.json"
    name.write_text(json.dumps(json.loads(name.read_text()) | {"truncation_side": "left", "model_max_length": 8}))
    model, words = load(tmp_path, device="cpu"), AutoTokenizer.from_pretrained(tmp_path)
    long, short = ("bad " * n + "a good film" for n in (2000, 20))
    wanted, encoder = words(long, truncation=True)["input_ids"], model.text_encoder()
    assert len(long) > 256 * 8 and wanted == words(short, truncation=True)["input_ids"]
    assert encoder.rows([encoder.checked(long)]).tolist() == [wanted]
    for pair in (lambda text: text, lambda text: ("dull", text)):
        assert model.classify([pair(long)]) == model.classify([pair(short)])


def edited(path, change):
    """Changes a file of JSON."""
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


LISTED = "sentence_transformers.sentence_transformer.modules."
REFUSED = [
    ("modules.json", lambda m: m[1].update(type=f"{LISTED}lstm.LSTM"), r"modules\.lstm\.LSTM' is not supported"),
    ("modules.json", lambda m: m[1].update(type="own.Pooling"), r"'own\.Pooling' is not supported"),
    ("modules.json", lambda m: m[1].update(path="../1_Pooling"), "no directory inside"),
    ("modules.json", lambda m: m[1].update(path="x" * 256), "no directory inside"),
    ("modules.json", lambda m: m.pop(1), "Transformer, Pooling, then others"),
    ("modules.json", lambda m: m[0].update(path="0_Transformer"), "'0_Transformer', and it must lie in"),
    ("1_Pooling/config.json", lambda m: m.update(pooling_mode="median"), r"pooling_mode is \['median'\]"),
    ("1_Pooling/config.json", lambda m: m.update(embedding_dimension=7), "embedding_dimension is 7"),
    ("2_Dense/config.json", lambda m: m.update(activation_function="own.Swish"), "activation_function is 'own.Swish'"),
    ("2_Dense/config.json", lambda m: m.update(use_residual=True), "use_residual is true"),
    ("2_Dense/config.json", lambda m: m.update(in_features=9), "in_features is 9"),
    ("2_Dense/config.json", lambda m: m.update(out_features=9), r"linear\.weight is \(24"),
    ("2_Dense/config.json", lambda m: m.update(module_input_name="token_embeddings"), "works on 'token_embeddings'"),
    ("sentence_bert_config.json", lambda m: m.update(transformer_task="fill-mask"), "transformer_task is 'fill-mask'"),
    ("sentence_bert_config.json", lambda m: m.update(model_args={"add_pooling_layer": 1}), "model_args sets"),
    ("sentence_bert_config.json", lambda m: m.update(max_seq_length=2), "none is left for the text"),
    ("config_sentence_transformers.json", lambda m: m.update(model_type="SparseEncoder"), "is 'SparseEncoder'"),
    ("config_sentence_transformers.json", lambda m: m.update(default_prompt_name="x"), "default_prompt_name is 'x'"),
]


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """A saved model with a dense layer: of seed 5."""
    folder = tmp_path_factory.mktemp("dense") / "m"
    saved_sentences("bert", 5, folder, poolings=["mean"])
    assert (folder / "2_Dense").is_dir()
    return folder


@pytest.mark.parametrize("name, change, said", REFUSED)
def test_directories_that_are_refused(name, change, said, dense):
    whole = (dense / name).read_text()
    try:
        edited(dense / name, change)
        with pytest.raises((InputError, UsageError), match=said):
            load(dense, device="cpu").embed(["good"])
    finally:
        (dense / name).write_text(whole)


def test_a_dense_layer_with_other_tensors_is_refused(dense):
    name = dense / "2_Dense" / "model.safetensors"
    whole, weights = name.read_bytes(), load_file(name)
    try:
        for changed, said in (
            ({"linear.weight": weights["linear.weight"], "more": np.ones(1, np.float32)}, "no part of a dense layer"),
            ({"linear.weight": weights["linear.weight"] * np.inf}, "linear.weight"),
            ({}, "linear.weight is missing"),
        ):
            save_file(changed, name)
            with pytest.raises(InputError, match=said):
                load(dense, device="cpu")
    finally:
        name.write_bytes(whole)


def test_wrong_arguments(dense):
    model = load(dense, device="cpu")
    for options, said in (
        ({"prompt_name": "q"}, "passage, query"), ({"prompt_name": "query", "prompt": "a"}, "not both"),
        ({"prompt": "good " * 80}, "a shorter prompt"),
    ):  # fmt: skip
        with pytest.raises((UsageError, InputError), match=said):
            model.embed(["good"], **options)
    for texts, said in (
        (["good", ""], "text 1 is empty"),
        ([[5], []], "text 1 has ids"),
        (["good", 5], "text 1 has ids"),
    ):
        with pytest.raises(UsageError, match=said):
            model.embed(texts)
    with pytest.raises(WrongType, match="a list of texts"):
        model.embed("good")
    with pytest.raises(WrongType, match="batch is 3; a bert takes device, dtype"):
        load(dense, device="cpu", batch=3)
    model.tokenizer = None
    with pytest.raises(UsageError, match=r"no tokenizer\.json"):
        model.embed(["good"])
