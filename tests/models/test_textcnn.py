"""TextCNN against PyTorch and float64, and the bits of a sentence in every company."""

import msgspec
import numpy as np
import pytest

from compare import compare
from tilewright.bench.workloads.sentiment import reference_logits
from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.formats.validate import largest_error
from tilewright.models.initial import random_textcnn
from tilewright.models.textcnn import TextCNN, TextCNNConfig
from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import threads
from tilewright.runtime.verbs.classify.saved_table import KeptTable

CONFIG = TextCNNConfig(
    vocab_size=300,
    hidden_size=48,
    num_filters=40,
    kernel_sizes=(3, 5, 9),
    hidden_sizes=(64, 32),
    num_labels=3,
    id2label={},
)
WEIGHTS = random_textcnn(CONFIG.tensor_shapes(), seed=3)
IDS = ((np.random.default_rng(5).zipf(1.2, (500, 16)) - 1) % 300).astype(np.int32)


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    """float32 (500, 3), from one call."""
    return TextCNN(CONFIG, WEIGHTS).logits(IDS)


def test_logits_against_float64(logits):
    reference = reference_logits(CONFIG, WEIGHTS, IDS)
    assert logits.dtype == np.float32 and logits.shape == (500, 3)
    assert largest_error(logits, reference) < 1e-5


def test_logits_against_pytorch(logits):
    import torch

    w = {name: torch.from_numpy(array) for name, array in WEIGHTS.items()}
    x = torch.nn.functional.embedding(torch.from_numpy(IDS), w["embedding.weight"]).transpose(1, 2)
    convolved = [torch.nn.functional.conv1d(x, w[f"convs.{i}.weight"], w[f"convs.{i}.bias"]) for i in range(3)]
    x = torch.cat([y.relu().amax(dim=2) for y in convolved], dim=1)
    for i in range(3):
        x = torch.nn.functional.linear(x, w[f"linears.{i}.weight"], w[f"linears.{i}.bias"])
        x = x.relu() if i < 2 else x
    compare(logits, x.numpy(), 1e-4)


def test_bfloat16_is_near_and_takes_another_path(logits):
    rounded = TextCNN(CONFIG, WEIGHTS, dtype="bfloat16").logits(IDS)
    assert 0 < np.abs(rounded - logits).max() < 0.05


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_sentence_has_the_same_bits_in_every_company(dtype, count, rng):
    """Alone, in batches of 2 to all, at any position, in any order of calls."""
    whole = TextCNN(CONFIG, WEIGHTS, dtype=dtype).logits(IDS)
    with threads(count):
        model = TextCNN(CONFIG, WEIGHTS, dtype=dtype)
        for size in (1, 2, 7, 100, 500):
            chosen = rng.permutation(500)[:size]
            assert model.logits(IDS[chosen]).tobytes() == whole[chosen].tobytes(), f"a batch of {size}"


@pytest.mark.parametrize("rows", [180, 250, 400, 1500])
def test_little_memory_for_the_table_changes_no_bits(rows, logits):
    """From room for barely one sentence up: rows are dropped and computed again."""
    model = TextCNN(CONFIG, WEIGHTS, table_memory=rows * 64 * 4)
    assert model.logits(IDS).tobytes() == logits.tobytes()
    assert model.convolutions.state.used <= rows
    if rows < 1000:
        assert model.convolutions.state.built > rows, "this test wants rows to be dropped"


def test_too_little_memory_is_refused():
    with pytest.raises(ResourceError, match=r"a sentence may need 174.*at least 44544 bytes"):
        TextCNN(CONFIG, WEIGHTS, table_memory=1000)


def test_a_kept_table_gives_the_same_bits(tmp_path, logits):
    path = str(tmp_path / "kept")
    first = TextCNN(CONFIG, WEIGHTS)
    first.logits(IDS[:1])  # rows that exist before the table is opened must survive it
    kept = KeptTable(first, path)
    assert first.logits(IDS[:250]).tobytes() == logits[:250].tobytes()
    assert kept.save() and not kept.save()
    second = TextCNN(CONFIG, WEIGHTS)
    second.logits(IDS[-1:])
    again = KeptTable(second, path)
    assert again.loaded == first.convolutions.state.used
    assert second.logits(IDS).tobytes() == logits.tobytes()
    assert again.save(), "the second half of the sentences added rows"


def test_a_kept_table_of_other_weights_is_not_used(tmp_path, logits):
    path = str(tmp_path / "kept")
    other = TextCNN(CONFIG, random_textcnn(CONFIG.tensor_shapes(), seed=4))
    kept = KeptTable(other, path)
    other.logits(IDS)
    kept.save()
    model = TextCNN(CONFIG, WEIGHTS)
    assert KeptTable(model, path).loaded == 0
    assert model.logits(IDS).tobytes() == logits.tobytes()


def test_batches_without_their_model_are_refused():
    batches = TextCNN(CONFIG, WEIGHTS).batches
    with pytest.raises(UsageError, match="the model of these batches was freed"):
        batches.run([IDS], [np.zeros((len(IDS), CONFIG.num_labels), np.float32), np.zeros(len(IDS), np.int32)])


def test_only_a_table_is_kept(tmp_path):
    with using(embedding_conv1d="cpu.gather"), pytest.raises(UsageError, match=r"rung cpu\.gather has no token table"):
        KeptTable(TextCNN(CONFIG, WEIGHTS), str(tmp_path / "kept"))


@pytest.mark.parametrize("place", [0, 20, 400, -1])
def test_a_damaged_table_is_refused(tmp_path, place):
    path = tmp_path / "kept"
    model = TextCNN(CONFIG, WEIGHTS)
    kept = KeptTable(model, str(path))
    model.logits(IDS)
    kept.save()
    content = bytearray(path.read_bytes())
    content[place] ^= 16
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a complete token table"):
        KeptTable(TextCNN(CONFIG, WEIGHTS), str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("convs.1.bias"), r"tensor convs\.1\.bias is missing; the configuration requires \(40,\)"),
        (lambda w: w.update({"extra": np.zeros(1)}), "tensor extra is .*no such tensor"),
        (
            lambda w: w.update({"linears.0.bias": np.zeros(63)}),
            r"tensor linears\.0\.bias is \(63,\); the configuration requires \(64,\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(change, message):
    weights = dict(WEIGHTS)
    change(weights)
    with pytest.raises(InputError, match=message):
        TextCNN(CONFIG, weights)


@pytest.mark.parametrize(
    ("field", "value"),
    [("vocab_size", 0), ("kernel_sizes", (17,)), ("kernel_sizes", ()), ("model_type", "gpt2"), ("id2label", {9: "x"})],
)
def test_sizes_that_make_no_network_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        TextCNNConfig(**{field: value})


def test_classify_names_the_label():
    model = TextCNN(msgspec.structs.replace(CONFIG, id2label={1: "good"}), WEIGHTS)
    for answer in model.classify(IDS[:20].tolist()):
        best = int(np.argmax(answer["logits"]))
        assert answer["label"] == ("good" if best == 1 else f"LABEL_{best}")
        assert 1 / 3 <= answer["score"] <= 1


def test_ids_are_checked(logits):
    model = TextCNN(CONFIG, WEIGHTS)
    bad = IDS.copy()
    bad[7, 3] = 300
    with pytest.raises(UsageError, match=r"ids\[7, 3\] is 300; the table has rows 0 to 299"):
        model.logits(bad)
    with pytest.raises(UsageError, match=r"\(n, 16\) is wanted"):
        model.logits(IDS[:, :8])


GOOD = IDS[:3].tolist()


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ([*GOOD, [1.0] + [0] * 15], r"sentence 3, position 0: 1\.0 is no token id; ids are 0 to 299"),
        ([*GOOD, [0] * 15 + [True]], "sentence 3, position 15: True is no token id"),
        ([[0, 2**32 + 5] + [0] * 14], "sentence 0, position 1: 4294967301 is no token id"),
        ([[0, -1] + [0] * 14], "sentence 0, position 1: -1 is no token id"),
        ([[0, 300] + [0] * 14], "sentence 0, position 1: 300 is no token id"),
        ([*GOOD, [1, 2, 3]], "sentence 3 has 3 token ids; the model takes 16"),
        ([0] * 16, "sentence 0 is 0; a sequence of 16 token ids is wanted"),
        (["a sentence of 16"], "sentence 0 is text, and the model has no tokenizer.json"),
        (np.zeros((1, 16)), r"sentence 0, position 0: np\.float64\(0\.0\) is no token id"),
    ],
)
def test_sentences_are_checked(sentences, message):
    with pytest.raises(UsageError, match=message):
        TextCNN(CONFIG, WEIGHTS).classify(sentences)


def test_sentences_may_be_any_sequences_of_integers():
    model = TextCNN(CONFIG, WEIGHTS)
    expected = model.classify(GOOD)
    assert model.classify(IDS[:3]) == model.classify(iter(map(tuple, IDS[:3].astype(np.uint16)))) == expected
    assert model.classify([]) == []


@pytest.mark.parametrize("memory", ["4G", 1e9, -1])
def test_a_table_memory_that_is_no_number_of_bytes(memory):
    with pytest.raises(UsageError, match=r"table_memory is .*; a number of bytes is wanted"):
        TextCNN(CONFIG, WEIGHTS, table_memory=memory)


def test_ragged_ids_are_refused():
    with pytest.raises(UsageError, match="ids is a list that NumPy cannot read"):
        TextCNN(CONFIG, WEIGHTS).logits([[1, 2], [3]])


class Letters:
    """A tokenizer of lower-case letters, of which all others are the unknown, id 1."""

    path, size = "tokenizer.json", 28

    def check(self, text):
        """Every text is short enough."""

    def encode_batch(self, texts):
        return [[ord(c) - 95 if "a" <= c <= "z" else 1 for c in text if c != " "] for text in texts]


LETTERS = TextCNNConfig(
    vocab_size=30, sequence_length=12, hidden_size=8, num_filters=5, hidden_sizes=(), pad_token_id=0
)  # as critic has them: longer than its kernels, one linear layer, a padding id


@pytest.fixture(scope="module")
def reader_of_letters():
    model = TextCNN(LETTERS, random_textcnn(LETTERS.tensor_shapes(), seed=6))
    model.tokenizer = Letters()
    return model


def test_sentences_may_be_text(reader_of_letters):
    texts = ["a b", "good film", "\U0001f600", "\0", "x" * 10_000, "word " * 10_000, "\u00e9", "it's"]
    found = reader_of_letters.classify(texts)
    ids = np.zeros((len(texts), 12), np.int32)
    for row, tokens in zip(ids, Letters().encode_batch(texts), strict=True):
        row[: len(tokens)] = tokens[:12]
    expected = reference_logits(LETTERS, random_textcnn(LETTERS.tensor_shapes(), seed=6), ids)
    assert largest_error(np.array([answer["logits"] for answer in found]), expected) < 1e-5
    assert [reader_of_letters.classify([text])[0] for text in texts] == found, "a sentence alone"
    assert reader_of_letters.classify([*texts[::-1], [2, 3]])[:-1] == found[::-1], "in other company"
    assert reader_of_letters.classify([[2, 3]]) == reader_of_letters.classify(["a b"]), "ids are filled up, too"


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        (["good", ""], r"sentence 1 \(counted from 0\) is empty; a sentence has at least one word\. Leave it out"),
        ([" \n"], r"sentence 0 \(counted from 0\) is empty"),
        (["a\udcff"], r"sentence 0 \(counted from 0\) is no valid Unicode: character 1 is half of a surrogate pair"),
        (["a", [0] * 13], r"sentence 1 \(counted from 0\) has 13 ids; the model takes 1 to 12"),
        ([[]], r"sentence 0 \(counted from 0\) has 0 ids"),
        ([[3, 30]], "sentence 0, position 1: 30 is no token id"),
        ([b"abc"], "sentence 0 is bytes; text or a sequence of up to 12 token ids is wanted"),
        ("good", "sentences is one text; a list of sentences is wanted"),
    ],
)
def test_texts_are_checked(reader_of_letters, sentences, message):
    with pytest.raises(UsageError, match=message):
        reader_of_letters.classify(sentences)


@pytest.mark.parametrize("rung", ["cpu.gather_add", "cpu.table_sums"])
@pytest.mark.parametrize("memory", [None, 60_000])
def test_threads_of_a_caller_share_a_table(logits, rung, memory):
    """Each call adds rows to the table, or, where they do not all fit, moves those of the others."""
    from concurrent.futures import ThreadPoolExecutor

    with using(embedding_conv1d=rung):
        model = TextCNN(CONFIG, WEIGHTS, table_memory=memory)
        whole = TextCNN(CONFIG, WEIGHTS).logits(IDS)

    def called(ids: np.ndarray) -> np.ndarray:
        with using(embedding_conv1d=rung):  # of this thread alone
            return model.logits(ids)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(called, np.split(IDS, 100)))
    assert np.array_equal(np.concatenate(found), whole)
