"""The layers of a TextCNN on a GPU (TILEWRIGHT_GPU=1), else with its kernels as Python."""

import numpy as np
import pytest

from gpu import ON_GPU, PLACE
from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.roofs.limits import Roofs
from tilewright.bench.workloads import sentiment_profile
from tilewright.models import textcnn
from tilewright.models.initial import random_textcnn
from tilewright.models.textcnn import TextCNN, TextCNNConfig
from tilewright.ops.core.ladder import using

cuda = pytest.importorskip("tilewright.backends.cuda")
pytestmark = [pytest.mark.usefixtures("simulated_gpu"), pytest.mark.long]
SIZES = {"vocab_size": 12, "sequence_length": 4, "hidden_size": 8, "num_filters": 6, "kernel_sizes": (1, 3)}
CONFIG = TextCNNConfig(**SIZES, hidden_sizes=(7,))


def test_every_layer_has_its_rates(monkeypatch):
    monkeypatch.setattr(sentiment_profile, "_clock", lambda on_cpu: CpuClock(cold=False))
    roof = Roofs(threads=0, copy_gbytes_s=100.0, gflops={"float32": 1000.0})
    monkeypatch.setattr(sentiment_profile, "measured_roofs", lambda count: roof)
    monkeypatch.setitem(textcnn.SIZES, "cuda", (2,))
    ids = np.random.default_rng(0).integers(0, 12, (3, 4), np.int32)
    with using(**({} if ON_GPU else {"matmul": "simt.register"})):  # the fast one where kernels run as Python
        model = TextCNN(CONFIG, random_textcnn(CONFIG.tensor_shapes(), seed=1), device=cuda.Cuda("float32", PLACE))
        model.logits(ids)
        rows = sentiment_profile.profile(model, ids, 1)
    assert [row.rung.split(",")[0] for row in rows] == ["embedding_conv1d 8 -> 6x1+3", "matmul 12x7", "matmul 7x2"]
    assert all(row.threads == 0 and row.gflops and row.roof_share and row.rows == 2 for row in rows)
