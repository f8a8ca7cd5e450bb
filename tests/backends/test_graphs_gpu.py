"""Rungs that are forced after a model's CUDA graphs were captured: they run, or are refused, as on the CPU."""

import gc

import numpy as np
import pytest

import dcgan_models
import gpt2_models
from gpu import ON_GPU
from tilewright.errors import UsageError
from tilewright.generation.sampling import SamplingParams
from tilewright.models.dcgan import DCGAN, DCGANConfig
from tilewright.models.gpt2 import GPT2, GPT2Config
from tilewright.ops.core.ladder import forcing

pytestmark = pytest.mark.skipif(not ON_GPU, reason="it takes a GPU: TILEWRIGHT_GPU=1")


@pytest.mark.parametrize("temperature", [0, 1], ids=["greedy", "sampled"])
def test_they_run_in_generation(temperature, rng, monkeypatch):
    config, rungs = GPT2Config(**gpt2_models.TINY), {"layernorm": "simt.naive", "attention": "simt.fused"}
    weights, prompts = gpt2_models.random_weights(config, 0), rng.integers(0, config.vocab_size, (60, 6))

    decode_state = pytest.importorskip("tilewright.generation.cuda.decode_state")
    steps, step = [], decode_state.DecodeState._step
    monkeypatch.setattr(decode_state.DecodeState, "_step", lambda state, R: (steps.append(R), step(state, R))[1])

    def tokens(model):
        steps.clear()
        params = SamplingParams(temperature=temperature, max_tokens=8)
        return [one.outputs[0].token_ids for one in model.generate(prompts, params, seed=1)]

    model = GPT2(config, weights, device="cuda")
    before = [tokens(model) for _ in range(3)][-1]
    assert not steps, "decode steps are replayed"
    with forcing(**rungs):
        wanted = tokens(GPT2(config, weights, device="cuda"))
    for turn in range(4):  # without a graph, at the capture, and replayed
        with forcing(**rungs) as ran:
            assert tokens(model) == wanted
        assert rungs.keys() <= ran and bool(steps) == (turn == 0)
    assert tokens(model) == before and steps


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_that_start_early_keep_the_tokens(dtype, rng, monkeypatch):
    early = pytest.importorskip("tilewright.ops.core.gpu.early")
    config, params = GPT2Config(**gpt2_models.TINY), SamplingParams(temperature=0, max_tokens=11)
    weights, prompts = gpt2_models.random_weights(config, 0), rng.integers(0, config.vocab_size, (30, 5))

    def tokens(model):
        return [one.outputs[0].token_ids for one in model.generate(prompts, params)]

    model = GPT2(config, weights, dtype=dtype, device="cuda")
    found = [tokens(model) for _ in range(20)]
    monkeypatch.setattr(early, "ROWS", 0)
    assert [tokens(GPT2(config, weights, dtype=dtype, device="cuda"))] * 20 == found


def test_garbage_is_not_collected_during_a_capture():
    """A graph that is freed then would end the capture."""
    torch = pytest.importorskip("torch")
    cuda_graph = pytest.importorskip("tilewright.backends.cuda_graph")
    x = torch.zeros(4, device="cuda")
    graph, _ = cuda_graph.captured(lambda: x.add_(1))
    garbage = [graph]
    garbage.append(garbage)
    del graph, garbage

    def work():
        several = [[] for _ in range(100_000)]  # enough for a collection
        return x.add_(len(several) - 99_999)

    threshold = gc.get_threshold()
    gc.set_threshold(100, 1, 1)
    try:
        graph, _ = cuda_graph.captured(work)
    finally:
        gc.set_threshold(*threshold)
    assert gc.isenabled()
    graph.replay()
    assert x.tolist() == [1] * 4


def test_they_run_in_batches_of_images():
    config = DCGANConfig()
    z = dcgan_models.random_noise(config, 5)
    weights = dcgan_models.random_weights(config)
    model = DCGAN(config, weights, device="cuda", batch=3, without={"folding"})
    images = model.generate(z)
    for _ in range(3):
        with forcing(batchnorm="simt.naive") as ran:
            found = model.generate(z)
        assert "batchnorm" in ran and np.abs(found - images).max() < 2e-4
    for _ in range(2):
        with forcing(conv_transpose2d="simt.gather"), pytest.raises(UsageError, match="was prepared for rung"):
            model.generate(z)
    assert model.generate(z).tobytes() == images.tobytes()
