"""The embedding bench at a small size: checked, beside its peers, and without them."""

import sys

import numpy as np
import pytest

from tilewright.bench.clocks import cpu as clock
from tilewright.bench.measure import Timing
from tilewright.bench.workloads import embed
from tilewright.bench.workloads.embed import Setting, lengths_of, padded, random_texts, read_lines
from tilewright.errors import InputError, InternalError, UsageError
from tilewright.models.bert_config import BertConfig

SMALL = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)


@pytest.fixture
def run(monkeypatch):
    """run(*against) -> (rows, the lines that were said)."""
    monkeypatch.setattr(clock, "SPIN_S", 0.0)

    def call(*against):
        said: list[str] = []
        texts = random_texts(SMALL, None, 40)
        return embed.bench(Setting(SMALL, texts, "minilm", against=against, rounds=2), said.append), said

    return call


def test_beside_pytorch(run):
    rows, said = run("torch")
    assert [row.rung for row in rows] == ["tilewright", "PyTorch"] and rows[0].rows == 40
    assert rows[0].peer == "PyTorch" and rows[0].peer_ratio > 0 and rows[0].gflops > 0
    assert any(line.startswith("checked 4 texts against float64") for line in said)


def test_a_ratio_is_the_median_over_rounds():
    """In which the machine's speed is the same."""
    timings = {"tilewright": Timing((1.0, 3.0, 10.0)), "PyTorch": Timing((2.0, 4.0, 15.0))}
    setting = Setting(SMALL, random_texts(SMALL, None, 4), "minilm")
    assert next(embed._rows(setting, timings, {})).peer_ratio == 1.5


@pytest.mark.long
def test_beside_openvino(run):
    pytest.importorskip("openvino")
    assert [row.rung for row in run("torch", "openvino")[0]] == ["tilewright", "PyTorch", "OpenVINO"]


def test_peers_compute_the_same_vectors():
    texts = random_texts(SMALL, None, 40)
    weights = embed.random_weights(SMALL, seed=1)
    setting = Setting(SMALL, texts, "minilm", against=("torch",))
    ((_, call),) = embed._peers(setting, weights, print)
    expected = np.stack([embed.reference_vector(SMALL, weights, ids) for ids in texts])
    assert np.abs(call() - expected).max() < 1e-4


def test_without_peers(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    rows, said = run("torch")
    assert [(row.rung, row.peer) for row in rows] == [("tilewright", None)]
    assert "no peers: torch is not installed; pip install torch transformers puts them beside ours" in said
    with pytest.raises(UsageError, match="no peer is called 'x'"):
        run("x")


def test_wrong_vectors_are_not_reported(run, monkeypatch):
    monkeypatch.setattr(embed, "reference_vector", lambda *args: np.full(16, np.nan))
    with pytest.raises(InternalError, match="nothing is reported"):
        run()


def test_lengths_come_from_lines(tmp_path):
    (tmp_path / "a.txt").write_text("one two three four five six seven eight nine ten\n\n")
    assert set(lengths_of(read_lines(str(tmp_path / "a.txt")), 9, 512)) == {15}
    (tmp_path / "a.txt").write_text(" \n\n")
    with pytest.raises(InputError, match="the file has no line with words"):
        read_lines(str(tmp_path / "a.txt"))
    drawn = lengths_of(None, 4000, 512)
    assert 26 < drawn.mean() < 30 and drawn.min() >= 3
    texts = [np.arange(n) for n in (1, 5, 3)]
    ((chosen, ids, mask),) = padded(texts)
    assert chosen.tolist() == [1, 2, 0] and ids.shape == (3, 5) and mask.sum() == 9
