"""The sentiment bench at a small size: checked, beside its peer, and without one."""

import sys

import numpy as np
import pytest

from tilewright.bench.clocks import cpu as clock
from tilewright.bench.measure import Timing
from tilewright.bench.results import PEER
from tilewright.bench.roofs.limits import Roofs
from tilewright.bench.workloads import sentiment, sentiment_profile
from tilewright.errors import InternalError
from tilewright.models.textcnn import TextCNNConfig

ROOF = Roofs(threads=1, copy_gbytes_s=10.0, gflops={"float32": 50.0})
SMALL = TextCNNConfig(vocab_size=50, hidden_size=8, num_filters=5, kernel_sizes=(2, 3), hidden_sizes=(7,))
IDS = np.random.default_rng(1).integers(0, 50, (40, 16), np.int32)


@pytest.fixture
def run(monkeypatch):
    """run(against) -> (rows, the lines that were said)."""
    monkeypatch.setattr(sentiment, "TextCNNConfig", lambda: SMALL)
    monkeypatch.setattr(clock, "SPIN_S", 0.0)
    monkeypatch.setattr(sentiment_profile, "measured_roofs", lambda count: ROOF)

    def call(*against):
        said: list[str] = []
        return sentiment.bench(IDS, count=1, against=against, say=said.append), said

    return call


def test_beside_pytorch(run):
    rows, said = run("torch")
    assert [row.rung for row in rows[:4]] == ["table inside", "table exists", "PyTorch", "PyTorch, windows"]
    assert all(row.peer in ("PyTorch", "PyTorch, windows") and row.peer_ratio > 0 for row in rows[:2])
    assert any(line.startswith("checked 40 sentences against float64") for line in said)
    assert all(row.label.endswith(" sentences/s; batch 16") and row.check == PEER for row in rows[2:4])


def test_a_ratio_is_the_median_over_rounds():
    """In which the machine's speed is the same. The run that built a CPU's table is in no round."""
    peers = [sentiment.Peer(name, dtype, lambda: None, 10, 5)
             for name, dtype in (("PyTorch", "float32"), ("slower", "float32"), ("shorter", "bfloat16"))]  # fmt: skip
    rounds = {"table exists": (1, 3, 10), "PyTorch": (2, 4, 15), "slower": (9, 9, 9), "shorter": (1, 1, 1)}
    timings = {"table inside": Timing((8.0,)), **{name: Timing(times) for name, times in rounds.items()}}
    inside, exists, theirs, *_ = sentiment._rows(40, timings, peers, {"dtype": "float32", "threads": 2}, {})
    assert inside.peer == exists.peer == "PyTorch"  # the fastest of the same dtype
    assert exists.peer_ratio == pytest.approx(4 * 1.5) and inside.peer_ratio == pytest.approx(4 * 4 / 8)
    assert (inside.rows, theirs.rows, theirs.label) == (40, 10, "2.5 sentences/s; batch 5")


def test_without_pytorch(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    rows, said = run("torch")
    assert [(row.rung, row.peer) for row in rows[:2]] == [("table inside", None), ("table exists", None)]
    layers = rows[2:]
    assert [row.op for row in layers] == ["sentiment_profile"] * 3 and layers[0].rung.startswith(
        "embedding_conv1d 8 ->"
    )
    assert [row.rung.partition(",")[0] for row in layers[1:]] == ["matmul 10x7", "matmul 7x2"]
    assert sum(float(row.label.rstrip("%")) for row in layers) == pytest.approx(100, abs=0.2)
    assert all(row.gflops and row.gbytes_s and row.roof_share for row in layers)
    assert "no peer: torch is not installed; pip install torch puts PyTorch beside ours" in said


def test_wrong_logits_are_not_reported(run, monkeypatch):
    monkeypatch.setattr(sentiment, "reference_logits", lambda *args: np.full((40, 2), np.nan))
    with pytest.raises(InternalError, match=r"off by inf; 0\.0001 is allowed, nothing is reported"):
        run()
