"""PyTorch beside the operations on a CPU: it computes what the rungs compute, in memory that is allocated."""

import numpy as np
import pytest

from tilewright.bench.climb import parts
from tilewright.bench.peers import cpu_peers
from tilewright.bench.peers._shared import packs
from tilewright.ops.attention.problem import Case as Attention
from tilewright.ops.batchnorm.problem import Case as Batchnorm
from tilewright.ops.conv1d.problem import Case as Conv1d
from tilewright.ops.conv_transpose2d.problem import Case as ConvTranspose2d
from tilewright.ops.elementwise.problem import Case as Elementwise
from tilewright.ops.embedding.problem import Case as Embedding
from tilewright.ops.embedding_conv1d.problem import Case as EmbeddingConv1d
from tilewright.ops.layernorm.problem import Case as Layernorm
from tilewright.ops.logprob.problem import Case as Logprob
from tilewright.ops.matmul.problem import Case as Matmul
from tilewright.ops.softmax.problem import Case as Softmax

pytest.importorskip("torch")

WRITTEN = [Elementwise(name, (5, 40)) for name in ("relu", "tanh", "gelu", "gelu_tanh")] + [Embedding((3, 5), 11, 8)]
CASES = [
    *WRITTEN,
    Softmax((5, 40)),
    Layernorm((5, 40)),
    Batchnorm((2, 3, 4, 8), activation="relu"),
    Conv1d(2, 9, 4, 3, 3, bias=True, activation="relu", pool="max"),
    ConvTranspose2d(2, 3, 4, 5, 6, bias=True, activation="relu"),
    EmbeddingConv1d(3, 9, 11, 8, 4, (2, 3)),
    Matmul(7, 9, 12),
    Logprob(5, 40, 8),
    Logprob(5, 40, 8, bias=True),
    Attention(2, 3, 6, 6, 4),
]
CHANNELS_FIRST = ("batchnorm", "conv_transpose2d")


def op_of(case):
    return type(case).__module__.split(".")[-2]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{op_of(case)}-{case.name}")
def test_every_peer_computes_the_same(case, rng):
    op = op_of(case)
    spec = parts(op)[1]
    inputs = spec.make(case, rng)
    exact, calls = spec.reference(case, inputs), cpu_peers(op, case, inputs)
    assert calls
    for name, call in calls.items():
        for found in (call(), call()):  # the second call may meet what the first has changed
            answer = np.asarray(found)
            answer = np.moveaxis(answer, 1, -1) if op in CHANNELS_FIRST else answer
            np.testing.assert_allclose(answer.reshape(exact.shape), exact, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: f"{op_of(case)}-{case.name}")
def test_a_peer_writes_to_memory_that_is_allocated(case, rng):
    """As our kernels do. Otherwise page faults were most of PyTorch's time for 268 MB of embeddings."""
    (call,) = cpu_peers(op_of(case), case, parts(op_of(case))[1].make(case, rng)).values()
    assert call().data_ptr() == call().data_ptr()


@pytest.mark.parametrize("supported", [True, False])
def test_a_cpu_that_cannot_pack_bfloat16_has_the_other_peers(supported, rng, monkeypatch):
    """An AVX2 CPU: oneDNN raises RuntimeError there, which ended the whole ladder."""
    if supported and not packs("bfloat16"):
        pytest.skip("oneDNN packs no bfloat16 weights on this CPU")
    monkeypatch.setattr("torch.ops.mkldnn._is_mkldnn_bf16_supported", lambda: supported, raising=False)
    case = Matmul(7, 9, 12, dtype="bfloat16")
    inputs = parts("matmul")[1].make(case, rng)
    exact, calls = parts("matmul")[1].reference(case, inputs), cpu_peers("matmul", case, inputs)
    assert list(calls) == ["oneDNN", "oneDNN, packed"][: 1 + supported]
    for call in calls.values():
        np.testing.assert_allclose(call().float().numpy(), exact, rtol=0.02, atol=0.05)
