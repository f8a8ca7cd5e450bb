"""Encoders on a GPU (TILEWRIGHT_GPU=1), else their kernels as Python: vectors and logits against transformers, a text's
bits in every company, pooling against the CPU's, and passes that are halved."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from bert_models import VOCABULARY, random_texts, saved
from gpu import ON_GPU, PLACE, widen_bfloat16
from tilewright.backends import pooling
from tilewright.errors import UsageError
from tilewright.models import bert
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.load import build, load, read_weights, text_vectors
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.embed import EmbedJob, embed

cuda = pytest.importorskip("tilewright.backends.cuda")
sentences = pytest.importorskip("sentence_models")
pytestmark = pytest.mark.usefixtures("simulated_gpu")

WIDE = {"hidden_size": 192, "num_attention_heads": 2, "intermediate_size": 200, "num_hidden_layers": 2}
SMALL = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 40, "num_hidden_layers": 1}
BOUND = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.01}  # of the largest element
DTYPES = list(BOUND) if ON_GPU else ["bfloat16", pytest.param("float32", marks=pytest.mark.long)]
LENGTHS = [*range(1, 70, 3), 16, 17, 64, 65, 66, 70] if ON_GPU else [1, 17, 66]
on_a_gpu = pytest.mark.skipif(not ON_GPU, reason="it takes a GPU: TILEWRIGHT_GPU=1")


@pytest.fixture(autouse=True)
def bfloat16_is_multiplied(monkeypatch):
    widen_bfloat16(monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Classifiers `float32`, which is wide enough for matrix units in that class, and `bfloat16` and `float16`."""
    folder = tmp_path_factory.mktemp("encoders")
    for dtype in BOUND:
        saved("bert", 1, folder / dtype, **(WIDE if ON_GPU or dtype == "float32" else SMALL))
    return folder


def placed(path, dtype="float32"):
    config, weights = read_weights(path)
    return bert.Bert(config, weights, dtype=dtype, device=cuda.Cuda(dtype, PLACE))


def ids_of(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(5, VOCABULARY, n) for n in lengths]


def bits(x):
    return np.ascontiguousarray(x).view(np.uint32)


def off(found, expected):
    return np.abs(found - expected).max() / np.abs(expected).max()


def assert_alike(found, wanted, dtype):
    """The same bits. Triton's interpreter multiplies float32 tiles by BLAS, which adds in an order of its own."""
    if ON_GPU or dtype != "float32":
        assert np.array_equal(bits(found), bits(wanted))
    else:
        assert off(found, wanted) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_against_transformers_and_bits_in_every_company(dtype, folder, rng):
    own, texts = AutoModel.from_pretrained(folder / dtype).eval(), ids_of(LENGTHS)
    with torch.no_grad():
        expected = np.stack([own(torch.from_numpy(ids)[None]).last_hidden_state[0].mean(0).numpy() for ids in texts])
    model = placed(folder / dtype, dtype)
    together = model.embeddings(texts)
    assert together.dtype == np.float32 and 0 < off(together, expected) < BOUND[dtype]
    assert_alike(model.embeddings(texts[::-1])[::-1], together, dtype)
    model.rows = 40  # several passes
    chosen = rng.permutation(len(texts))[: 20 if ON_GPU else 2]
    assert_alike(model.embeddings([texts[i] for i in chosen]), together[chosen], dtype)
    for i in range(len(texts)) if ON_GPU else (1,):
        assert_alike(model.embeddings(texts[i : i + 1]), together[i : i + 1], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_of_texts_and_pairs(dtype, folder):
    theirs = AutoModelForSequenceClassification.from_pretrained(folder / dtype).eval()
    texts = ids_of([3, 17, 30], 2)
    seconds = np.array([0, 2, 5])
    expected = []
    for ids, second in zip(texts, seconds, strict=True):
        kinds = torch.from_numpy((np.arange(len(ids)) >= (second or len(ids))).astype(np.int64))[None]
        with torch.no_grad():
            expected.append(theirs(torch.from_numpy(ids)[None], token_type_ids=kinds).logits.numpy()[0])
    model = placed(folder / dtype, dtype)
    found = model.logits(texts, seconds)
    assert off(found, np.stack(expected)) < BOUND[dtype]
    assert_alike(model.logits(texts[1:2], seconds[1:2]), found[1:2], dtype)


@pytest.mark.parametrize("skip", [0, 4])
def test_pooling_is_that_of_the_cpu(skip, rng):
    lengths = [1, 2, 5, 9, 40]
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    x = rng.standard_normal((bounds[-1], 150), np.float32)
    there, edges = (torch.from_numpy(array).to(PLACE) for array in (x, bounds))
    kinds = ("mean", "max", "weightedmean", "cls", "lasttoken", "mean_sqrt_len_tokens")
    expected = pooling.pooled(x, bounds, kinds, skip)
    found = pooling.pooled(there, edges, kinds, skip)
    assert found.dtype == torch.float32 and np.abs(found.cpu().numpy() - expected).max() < 1e-6
    alone = pooling.pooled(there[8:17].contiguous(), torch.tensor([0, 9]).to(PLACE), kinds, skip)
    assert torch.equal(alone[0], found[3])
    assert np.abs(pooling.unit(found).cpu().numpy() - pooling.unit(expected)).max() < 1e-6
    zero = torch.zeros((2, 5), device=PLACE)
    assert torch.equal(pooling.unit(zero), zero)
    there[4, 7] = torch.nan  # of text 2, neither its first token nor its last
    assert pooling.pooled(there, edges, kinds, 0)[2].isnan().sum() == 4, "a maximum drops no NaN"


@pytest.mark.skipif(not ON_GPU, reason="its rung for few columns takes 20 s as Python; it takes a GPU")
def test_the_modules_of_sentence_transformers(tmp_path):
    """Dense layers and lengths of 1, on the device too."""
    theirs = sentences.saved_sentences("bert", 5, tmp_path / "m", poolings=["mean", "cls"])
    here, texts = load(tmp_path / "m", device="cpu"), random_texts(20)
    model = placed(tmp_path / "m")
    model.tokenizer, model.vectors = here.tokenizer, text_vectors(here.vectors.modules, model)
    found = model.embed(texts)
    assert model.vectors.layers, "of this seed"
    assert off(found, theirs.encode(texts)) < BOUND["float32"]
    assert np.array_equal(bits(model.embed(texts[:1], dimensions=5)), bits(model.vectors.cut(found[:1], 5)))


def test_a_pass_is_halved_until_it_fits(folder, monkeypatch):
    texts = ids_of([5, 9, 20, 30, 31] if ON_GPU else [2, 20, 60])
    model = placed(folder / "bfloat16", "bfloat16")
    wanted, attend, seen = model.embeddings(texts), bert.attend, []

    def short(q, *given, **options):
        if len(q) > 64:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        seen.append(len(q))
        return attend(q, *given, **options)

    monkeypatch.setattr(bert, "attend", short)
    model.rows = 256
    assert np.array_equal(bits(model.embeddings(texts)), bits(wanted))
    assert model.rows == 64 and max(seen) <= 64


def test_accuracy_classes_that_are_refused(folder):
    with pytest.raises(UsageError, match="dtype is 'tf32'"):
        placed(folder / "float32", "tf32")


@on_a_gpu
def test_a_device_by_name_and_whole_jobs(folder, tmp_path):
    texts = random_texts(200, 7)
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n")
    assert "on cuda" in repr(load(folder / "float32"))
    wanted = load(folder / "float32", device="cuda", dtype="float16").embed(texts)
    for number, options in enumerate(({}, {"batch_size": 7}, {"shard_size": 900})):
        settings = Settings(device="cuda", dtype="float16", **options)
        out = tmp_path / f"{number}.npy"
        embed(EmbedJob(str(folder / "float32"), str(tmp_path / "in.txt"), str(out), settings=settings))
        assert np.array_equal(bits(np.load(out)), bits(wanted))
        lines = tmp_path / f"{number}.jsonl"
        classify(ClassifyJob(str(folder / "float32"), str(tmp_path / "in.txt"), str(lines), settings=settings))
        assert lines.read_bytes() == (tmp_path / "0.jsonl").read_bytes()
    here, there = load(folder / "float32", device="cpu"), build(*read_weights(folder / "float32"), device="cuda")
    assert off(there.embed([[5, 6]]), here.embed([[5, 6]])) < BOUND["float32"]
