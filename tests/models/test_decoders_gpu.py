"""OPT and GPT-NeoX on a GPU (TILEWRIGHT_GPU=1), else their kernels as Python: the logits after prompts and after single
new positions against transformers; on a GPU also whole generations, and a record's tokens in every company."""

import numpy as np
import pytest
import torch

import tilewright as tw
from decoder_models import CONTEXT, VOCABULARY, peer, ragged
from gpt2_models import divergences, peer_logits
from gpu import ON_GPU, PLACE, round_fma_once, widen_bfloat16
from tilewright.generation import language_model
from tilewright.ops.attention import span
from tilewright.runtime.load import KINDS, read_weights

cuda = pytest.importorskip("tilewright.backends.cuda")
attention = pytest.importorskip("tilewright.generation.cuda.attention")
pytestmark = pytest.mark.usefixtures("simulated_gpu")

# OPT: a norm after each sum and projections (1), no biases (2), norms without weights (3); GPT-NeoX: both parts of a
# layer in parallel (0), one after the other (1)
MODELS = [("opt", 1), ("gpt_neox", 0), *([("opt", 0), ("opt", 2), ("opt", 3), ("gpt_neox", 1)] if ON_GPU else [])]
BOUND = {"float32": 1e-4, "bfloat16": 0.06, "float16": 0.01}  # of the largest logit
DTYPES = list(BOUND) if ON_GPU else ["bfloat16"]
rarely = pytest.mark.long if not ON_GPU else pytest.mark.filterwarnings("default")  # half a minute as Python
on_a_gpu = pytest.mark.skipif(not ON_GPU, reason="it takes a GPU: TILEWRIGHT_GPU=1")


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch):
    widen_bfloat16(monkeypatch)
    round_fma_once(monkeypatch)
    monkeypatch.setattr(language_model, "backend", lambda device, dtype, without: cuda.Cuda(dtype, PLACE, without))


def models(family, seed, folder, dtype):
    """(transformers' model, ours on the GPU)."""
    other = peer(family, seed)
    other.save_pretrained(folder)
    config, weights = read_weights(folder)
    return other, KINDS[config.model_type].model(config, weights, dtype=dtype, device="cuda")


@rarely
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("family", "seed"), MODELS)
def test_logits_of_prompts_and_of_new_positions(family, seed, dtype, tmp_path, rng):
    other, model = models(family, seed, tmp_path, dtype)
    ids = [rng.integers(0, VOCABULARY, n) for n in (9, 4)]
    wanted = [peer_logits(other, text) for text in ids]
    scale = max(np.abs(one).max() for one in wanted)
    caches, work = model.attention.caches(2, CONTEXT), model.backend.workspace()
    spans = np.array([span(0, 0, 8, 0), span(1, 0, 3, 8)], np.int64)
    rows = np.concatenate([text[:-1] for text in ids]), np.concatenate([np.arange(8), np.arange(3)])
    found = model.logits(model.forward(model.attention.batch(*rows, caches, spans), work)).cpu().numpy()
    assert np.abs(found - np.stack([wanted[0][7], wanted[1][2]])).max() < BOUND[dtype] * scale
    last, positions, slots = np.array([text[-1] for text in ids]), np.array([8, 3]), np.array([0, 1])
    there = [torch.from_numpy(x.astype(np.int32)).to(PLACE) for x in (positions, slots)]
    step = attention.DecodeBatch(torch.from_numpy(last).to(PLACE), *there, caches, 9)
    found = model.logits(model.forward(step, work)).cpu().numpy()
    assert np.abs(found - np.stack([wanted[0][8], wanted[1][3]])).max() < BOUND[dtype] * scale


@on_a_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("family", "seed"), MODELS)
def test_tokens_in_every_company(family, seed, dtype, tmp_path, rng):
    other, model = models(family, seed, tmp_path, dtype)
    prompts, greedy = ragged(rng, 60), tw.SamplingParams(temperature=0, max_tokens=5)
    together = [output.outputs[0].token_ids for output in model.generate(prompts, greedy)]
    for prompt, tokens in zip(prompts[:12], together[:12], strict=True):
        logits = peer_logits(other, [*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        divergences(tokens, logits, 2 * BOUND[dtype] * float(np.abs(logits).max()))
    for size in (1, 2, 7):
        some = rng.permutation(60)[:size]
        found = [output.outputs[0].token_ids for output in model.generate([prompts[i] for i in some], greedy)]
        assert found == [together[i] for i in some]
