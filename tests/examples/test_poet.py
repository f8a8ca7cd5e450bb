"""poet: the shipped files, what they say and what tilewright makes of them; and the program that trains it."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
POET = ROOT / "src" / "tilewright" / "data" / "models" / "poet"
VERSE = Path(__file__).parent / "verse.txt"  # lines of the held-out tenth
LOSS = 1.4431  # nats a character of VERSE, by transformers with these weights
TINY = {"layers": 1, "width": 32, "heads": 1, "context": 16, "batch": 4, "steps": 20, "vocabulary": 280}


@pytest.fixture
def script(monkeypatch):
    """The programs of examples/train by name."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "train"))
    return importlib.import_module


@pytest.fixture(scope="module")
def poet():
    return tw.load(POET)


def card() -> str:
    return (POET / "README.md").read_text("utf-8")


def figure_of_the_card() -> float:
    return float(re.search(r"^figures: held-out loss ([\d.]+) nats a character", card(), re.M)[1])


def test_the_files_are_few_and_small():
    files = {path.name: path.stat().st_size for path in POET.iterdir()}
    assert files.keys() == {"README.md", "config.json", "model.safetensors", "tokenizer.json"}
    assert sum(files.values()) <= 17_000_000


def test_the_card_says_what_one_must_know():
    text = card()
    assert 1.3 < figure_of_the_card() < 1.47
    assert all(re.search(rf"^{key}: .", text, re.M) for key in ("task", "data", "license", "seed"))
    sections = re.findall(r"^## (.*)", text, re.M)
    assert sections == ["Data", "Figures", "Recipe", "What it is not good for", "Licence"]
    assert "{" not in text, "a figure was not filled in"


def test_the_loss_is_transformers(poet, script):
    check, text = script("check_poet"), script("text")
    verse, context = VERSE.read_text("utf-8"), poet.config.n_positions
    ids = torch.tensor([0, *poet.tokenizer.encode(verse)])
    found = text.nats(lambda x: torch.from_numpy(check.logits_of(poet, x.numpy())), ids, context, context // 2)
    assert found / len(verse) == pytest.approx(LOSS, abs=1e-4)
    assert pytest.approx(figure_of_the_card(), abs=0.05) == LOSS


def test_a_seed_decides_what_follows(poet):
    def after(prompt: str, seed: int) -> str:
        params = tw.SamplingParams(max_tokens=60, temperature=0.8, top_p=0.95, seed=seed)
        return next(poet.generate([prompt], params)).outputs[0].text

    first = after("ROMEO:\n", 1)
    assert first == after("ROMEO:\n", 1) != after("ROMEO:\n", 2)
    assert first.count("\n") >= 2 and len(set(first.split())) > 15


@pytest.mark.parametrize("prompt", ["\N{ROSE} \N{GRINNING FACE}", "a\0b", "\u4e16\u754c \u00e9", " " * 40, "\t\n\r"])
def test_any_text_is_a_prompt(poet, prompt):
    ids = poet.tokenizer.encode(prompt)
    assert poet.tokenizer.decode(ids) == prompt
    output = next(poet.generate([prompt], tw.SamplingParams(max_tokens=2, temperature=0)))
    assert output.prompt_token_ids == ids and len(output.outputs[0].token_ids) == 2


@pytest.mark.parametrize(
    ("n", "context", "stride"), [(1, 8, 4), (7, 8, 4), (8, 8, 4), (9, 8, 4), (100, 8, 4), (97, 8, 8)]
)
def test_each_token_is_a_target_once(script, n, context, stride):
    text = script("text")
    ids = torch.arange(1000, 1000 + n + 1)
    inputs, targets = text.windows(ids, context, stride)
    assert inputs.shape == targets.shape and inputs.shape[1] == context
    rows, columns = np.nonzero(targets.numpy() != text.UNSEEN)
    assert sorted(targets[rows, columns].tolist()) == ids[1:].tolist()
    assert (inputs[rows, columns] + 1).tolist() == targets[rows, columns].tolist()
    assert (columns[rows > 0] >= context - stride).all()


def test_tokens_that_are_taken_apart_are_the_same_text(script):
    text = script("text")
    verse = VERSE.read_text("utf-8")
    tokenizer = text.trained_tokenizer(verse, 320)
    ids, pairs = text.encoded(tokenizer, verse), text.parts(tokenizer)
    assert (pairs[:, 0] >= 0).sum() == 320 - 256 - 1
    assert text.unmerged(ids, pairs, 0.0).tolist() == ids.tolist()
    some, most = text.unmerged(ids, pairs, 0.3), text.unmerged(ids, pairs, 1.0)
    assert len(ids) < len(some) < len(most) <= len(verse) + 1
    assert tokenizer.decode(some.tolist()) == tokenizer.decode(most.tolist()) == verse


def test_training_writes_a_model(script, tmp_path, monkeypatch, capsys):
    options = [word for name, value in TINY.items() for word in (f"--{name}", str(value))]
    folder = tmp_path / "made"
    monkeypatch.setattr(sys, "argv", ["poet.py", str(VERSE), str(folder), *options, "--device", "cpu", "--seeds", "2"])
    script("poet").main()
    assert capsys.readouterr().out.count("a held-out character") == 2 * 18  # the first tenth is not averaged
    model = tw.load(folder)
    assert model.config.n_embd == TINY["width"] and model.config.vocab_size == TINY["vocabulary"]
    output = next(model.generate(["A horse"], tw.SamplingParams(max_tokens=3, seed=1)))
    assert len(output.outputs[0].token_ids) == 3
    assert "Losses by seed: 1: " in (folder / "README.md").read_text("utf-8")
