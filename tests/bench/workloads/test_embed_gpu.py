"""The embedding bench on a GPU at a small size, beside PyTorch there."""

import pytest

from gpu import ON_GPU
from tilewright.bench.workloads import embed
from tilewright.bench.workloads.embed import BATCH, LARGE, Setting, random_texts
from tilewright.errors import UsageError
from tilewright.models.bert_config import BertConfig

SMALL = BertConfig(vocab_size=50, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96)


@pytest.mark.skipif(not ON_GPU, reason="it takes a GPU: TILEWRIGHT_GPU=1")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_beside_pytorch(dtype):
    texts = random_texts(SMALL, None, 600)
    rows = embed.bench(Setting(SMALL, texts, "minilm", dtype, against=("torch",), rounds=2, device="cuda"), print)
    assert [row.rung for row in rows] == ["tilewright", *(f"PyTorch, batches of {n}" for n in (BATCH, LARGE))]
    assert all(0 < (row.roof_share or 0) < 1 and row.threads == 0 for row in rows) and rows[0].peer_ratio


def test_a_peer_of_the_cpu_is_refused():
    with pytest.raises(UsageError, match="no peer is called 'openvino'; torch are known"):
        embed.bench(Setting(SMALL, [], "minilm", against=("openvino",), device="cuda"), print)
