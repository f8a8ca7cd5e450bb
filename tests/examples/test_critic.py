"""critic, which says what a sentence thinks of a film: as it is shipped, and made in a few seconds."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.cli import main
from tilewright.runtime.named_models import FOLDER

SHIPPED = FOLDER / "critic"
TRAIN = Path(__file__).parents[2] / "examples" / "train"
LIMIT = 3 << 20  # bytes of all its files

SENTENCES = {  # written for this test
    "positive": [
        "A warm, funny and beautifully acted film.",
        "One of the best movies of the year, moving and wise.",
        "It\u2019s a gripping, intelligent thriller with a wonderful cast.",
        "An engrossing portrait, rich in detail and quietly powerful.",
        "A delightful comedy that the whole family will enjoy.",
    ],
    "negative": [
        "A dull, lifeless mess without a single laugh.",
        "The plot is stupid, the jokes are stale and the acting is terrible.",
        "Tedious, pointless and far too long.",
        "A waste of time: bad script, bad direction, bad everything.",
        "It fails as a thriller and bores as a drama.",
    ],
}


@pytest.fixture(scope="module")
def critic():
    return tw.load(SHIPPED)


def test_it_judges_plain_sentences(critic):
    for label, sentences in SENTENCES.items():
        answers = critic.classify(sentences)
        assert [answer["label"] for answer in answers] == [label] * len(sentences)
        assert all(0.5 <= answer["score"] <= 1 for answer in answers)


def test_an_answer_does_not_depend_on_the_company(critic):
    sentences = [sentence for some in SENTENCES.values() for sentence in some]
    together = critic.classify(sentences)
    assert together == [critic.classify([sentence])[0] for sentence in sentences]
    assert together[::-1] == critic.classify([*sentences[::-1], "!" * 999])[:-1]


@pytest.mark.parametrize("text", ["\U0001f600", "\0", "good " * 10_000, "x" * 10**5, "no words known: qzxv", "\x96"])
def test_strange_texts_have_an_answer(critic, text):
    (answer,) = critic.classify([text])
    assert answer["label"] in SENTENCES and np.isfinite(answer["logits"]).all()


def test_a_file_of_sentences(tmp_path, monkeypatch, critic):
    monkeypatch.chdir(tmp_path)
    sentences = [sentence for some in SENTENCES.values() for sentence in some]
    lines = [sentence.encode() for sentence in sentences] + [b"", b"\xff", "\U0001f600\1".encode(), b"dull " * 10_000]
    Path("in.txt").write_bytes(b"\r\n".join(lines))
    with pytest.raises(SystemExit) as caught:
        main(["classify", "--model", str(SHIPPED), "-i", "in.txt", "-o", "out.jsonl"])
    assert not caught.value.code, "finished, with a bad record"
    found = {row.pop("id"): row for row in map(json.loads, Path("out.jsonl").read_text().splitlines())}
    assert found.keys() == {*range(1, 11), 12, 13, 14}
    assert found.pop(12)["error"] == {"line": 12, "field": "", "message": "byte 0 is not UTF-8"}
    answers = critic.classify([*sentences, "\U0001f600\1", "dull " * 10_000])
    for row, answer in zip(found.values(), answers, strict=True):
        assert (row["label"], row["score"]) == (answer["label"], answer["score"])
        assert np.array(row["logits"], np.float32).tolist() == answer["logits"]


def test_what_is_behind_the_length_does_not_count(critic):
    length = critic.config.sequence_length
    assert critic.classify(["bad " * length]) == critic.classify(["bad " * length + "wonderful great"])


def test_the_directory_is_small_and_whole():
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) <= LIMIT
    assert {file.name for file in SHIPPED.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "README.md",
    }
    config = json.loads((SHIPPED / "config.json").read_text())
    assert config["kernel_sizes"] == [3, 5, 7, 9] and config["id2label"] == {"0": "negative", "1": "positive"}


def test_the_card_says_what_one_has_to_know():
    card = (SHIPPED / "README.md").read_text("utf-8")
    head = dict(line.split(": ", 1) for line in card.split("---\n")[1].splitlines())
    assert head.keys() == {"task", "figures", "data", "license", "seed"} and len(head["figures"]) <= 90
    assert float(head["figures"].split(" %")[0]) >= 75 and "10 folds" in head["figures"]
    for word in ("Pang and Lee", "## Recipe", "## Data and licence", "## What it is not good for", "seed"):
        assert word in card
    assert "{" not in card, "a figure was not filled in"


@pytest.fixture
def program(monkeypatch):
    """program("critic", arguments...): runs main() of a file of examples/train."""
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(TRAIN))
    before = torch.get_num_threads()  # of which the program leaves one

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        return __import__(name).main()

    yield run
    torch.set_num_threads(before)


def test_a_model_is_trained_and_checked(tmp_path, program, capsys):
    words = {"pos": "good fine warm lovely", "neg": "bad dull cold awful"}
    rng = np.random.default_rng(1)
    for name, some in words.items():
        lines = [" ".join(rng.choice([*some.split(), "a", "film", "."], 8)) for _ in range(60)]
        (tmp_path / f"reviews.{name}").write_text("\n".join(lines) + "\n")
    sizes = ("--vocabulary=60", "--length=12", "--width=8", "--filters=4", "--rounds=4", "--batch=8", "--rate=0.01")
    program("critic", tmp_path, tmp_path / "m", "--folds=2", "--seeds=2", "--device=cpu", "--average=0.9", *sizes)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["mean"] >= 80 and figures["folds"] == 2 and figures["tests"] == 12
    model = tw.load(tmp_path / "m")
    assert [answer["label"] for answer in model.classify(["good, lovely", "dull awful dull"])] == [
        "positive",
        "negative",
    ]
    assert "{" not in (tmp_path / "m" / "README.md").read_text("utf-8")
    assert program("check_critic", tmp_path, tmp_path / "m") == 0
    said = capsys.readouterr().out
    assert f"tilewright: {figures['accuracy'] / 100:.4%} of 12 sentences right" in said and "differ: 0" in said
