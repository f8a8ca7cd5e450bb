"""The scoring bench on a GPU at a small size, beside PyTorch there."""

import pytest

from gpu import ON_GPU
from tilewright.bench.workloads import score
from tilewright.bench.workloads.gpt2 import random_weights
from tilewright.bench.workloads.score import Setting, random_pairs
from tilewright.models.gpt2 import GPT2Config

SMALL = GPT2Config(vocab_size=500, n_positions=96, n_embd=64, n_layer=2, n_head=2, eos_token_id=0)


@pytest.mark.skipif(not ON_GPU, reason="it takes a GPU: TILEWRIGHT_GPU=1")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_beside_pytorch(dtype):
    pairs = random_pairs(SMALL, None, 300, 2)
    setting = Setting(SMALL, random_weights(SMALL, 1), pairs, 2, dtype, 1, ("torch",), 2, "cuda")
    rows = score.bench(setting, print)
    assert [row.rung for row in rows] == ["tilewright", "PyTorch"]
    assert all(0 < (row.roof_share or 0) < 1 and row.threads == 0 for row in rows) and rows[0].peer_ratio
