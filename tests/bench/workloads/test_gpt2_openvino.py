"""GPT-2 in OpenVINO is the same network: its tokens are ours."""

import numpy as np
import pytest

from gpt2_models import TINY, random_weights
from tilewright.bench.workloads import gpt2_engines
from tilewright.models.gpt2 import GPT2Config

pytestmark = pytest.mark.long
pytest.importorskip("openvino")


def test_tokens_and_logits_are_ours(rng):
    config = GPT2Config(**TINY)
    weights = random_weights(config, 0)
    prompts = rng.integers(0, config.vocab_size, (9, 6))
    theirs = gpt2_engines.openvino(config, weights, "float32")
    ours = gpt2_engines.ours(config, weights, "float32")
    assert theirs.logits(prompts) == pytest.approx(ours.logits(prompts), abs=1e-3)
    assert np.array_equal(theirs.generate(prompts, 7, 4, 1), ours.generate(prompts, 7))
