"""The scoring bench at a small size: checked, beside its peers, and without them."""

import sys

import numpy as np
import pytest

from tilewright.bench.clocks import cpu as clock
from tilewright.bench.workloads import score
from tilewright.bench.workloads.gpt2 import random_weights
from tilewright.bench.workloads.score import LONGEST, Setting, random_pairs
from tilewright.errors import InternalError, UsageError
from tilewright.formats.packages import install_command
from tilewright.models.gpt2 import GPT2Config

SMALL = GPT2Config(vocab_size=50, n_positions=64, n_embd=16, n_layer=2, n_head=2, eos_token_id=0)


@pytest.fixture
def run(monkeypatch):
    """run(*against) -> (rows, the lines that were said)."""
    monkeypatch.setattr(clock, "SPIN_S", 0.0)

    def call(*against, answers=1):
        said: list[str] = []
        return score.bench(setting(against, answers=answers), said.append), said

    return call


def setting(against=(), answers=1, **options):
    pairs = random_pairs(SMALL, None, 20, answers)
    return Setting(SMALL, random_weights(SMALL, 1), pairs, answers, against=against, rounds=2, **options)


def test_beside_pytorch(run):
    rows, said = run("torch")
    assert [row.rung for row in rows] == ["tilewright", "PyTorch"] and rows[0].rows == 20
    assert rows[0].peer == "PyTorch" and rows[0].peer_ratio > 0 and rows[0].gflops > 0
    assert any(line.startswith("checked 2 texts against float64") for line in said)
    (apart,) = [float(line.split()[-3]) for line in said if line.startswith("PyTorch: ")]
    assert apart <= 1e-4


@pytest.mark.long
def test_beside_the_harness(run):
    pytest.importorskip("lm_eval")
    rows, said = run("lm-eval", answers=4)
    assert [row.rung for row in rows] == ["tilewright", "lm-eval hf"]
    assert rows[0].size.endswith("20 texts, 4 per context")
    (apart,) = [float(line.split()[-3]) for line in said if line.startswith("lm-eval hf: ")]
    assert apart <= 1e-4


def test_without_peers(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    rows, said = run("torch", "lm-eval")
    assert [(row.rung, row.peer) for row in rows] == [("tilewright", None)]
    assert "no peers: torch is not installed; to compare with it: pip install torch transformers" in said
    with pytest.raises(UsageError, match="no peer is called 'x'; torch, lm-eval are known"):
        run("x")


def test_without_the_harness(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.models", None)
    monkeypatch.setitem(sys.modules, "lm_eval.models.huggingface", None)
    rows, said = run("torch", "lm-eval")
    assert [row.rung for row in rows] == ["tilewright", "PyTorch"]
    assert any(f"to compare with it: {install_command('eval')}" in line for line in said)


def test_wrong_values_are_not_reported(run, monkeypatch):
    monkeypatch.setattr(score, "reference_logits", lambda *args: np.full((1, args[3], 50), np.nan))
    with pytest.raises(InternalError, match="nothing is reported"):
        run()


def test_lengths_come_from_lines():
    pairs = random_pairs(SMALL, ["one two three four five six seven eight nine ten", ""], 9, answers=3)
    assert {len(context) for context, _ in pairs} == {13} and len(pairs) == 9
    assert all(2 <= len(continuation) <= LONGEST for _, continuation in pairs)
    assert len({tuple(context) for context, _ in pairs}) == 3, "three continuations have one context"
    large = GPT2Config()
    assert 70 < np.mean([len(context) for context, _ in random_pairs(large, None, 2000)]) < 90
    with pytest.raises(UsageError, match="the model reads 24 tokens; this workload needs more than 24"):
        random_pairs(GPT2Config(n_positions=24, n_embd=16, n_head=2, n_layer=1), None, 1)


def test_operations_are_those_of_each_text_alone():
    config, (context, continuation) = SMALL, ([1, 2, 3], [4, 5])
    one = Setting(config, {}, [(context, continuation)])
    C, V, T = config.n_embd, config.vocab_size, 4
    layers = config.n_layer * (T * 24 * C * C + 4 * C * T * (T + 1) / 2)
    assert one.flops == pytest.approx(layers + 2 * V * C * 2) and one.tokens == T
