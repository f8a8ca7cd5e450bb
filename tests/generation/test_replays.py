"""Recorded decode steps: the same log-probabilities as computed ones, bit for bit, in every family."""

import pytest

import tilewright as tw
from decoder_models import FAMILIES, peer, ragged, save
from gpt2_models import tiny
from tilewright.ops.core.recording import no_replays
from tilewright.ops.core.replay import Recording
from tilewright.runtime.load import load


@pytest.fixture
def replays(monkeypatch):
    """Gets an entry for each replay."""
    found, replay = [], Recording.replay
    monkeypatch.setattr(Recording, "replay", lambda self: (found.append(self), replay(self)))
    return found


def answers(model, prompts, tokens: int = 20) -> str:
    params = tw.SamplingParams(max_tokens=tokens, logprobs=3, ignore_eos=True)
    return repr([output.outputs for output in model.generate(prompts, params)])  # every float32 has its own repr


def same_with_and_without(model, prompts) -> bool:
    with no_replays():
        computed = answers(model, prompts)
    return answers(model, prompts) == computed


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gpt2(dtype, count, rng, replays):
    model = tiny(dtype=dtype, n_embd=64, n_head=2)
    with tw.threads(count):
        assert same_with_and_without(model, [rng.integers(0, 97, 9).tolist()])
        assert len(replays) == 16  # of 20 tokens: the prompt, a new batch, and two recorded passes are computed
        assert same_with_and_without(model, [rng.integers(0, 97, n).tolist() for n in (3, 9, 2, 30)])
        assert len(replays) == 32


def test_sequences_that_come_and_go(rng, replays):
    """Prompts of many lengths in two slots end at other steps, and others take their slots."""
    model, params = tiny(), tw.SamplingParams(max_tokens=9, logprobs=1, stop_token_ids=list(range(12)))
    prompts, memory = [rng.integers(0, 97, n).tolist() for n in range(1, 30)], 2 * model.attention.cache_bytes(64)

    def found() -> str:
        return repr([output.outputs for output in model.generate(prompts, params, max_batch_memory=memory)])

    with no_replays():
        computed = found()
    assert found() == computed
    assert replays


@pytest.mark.parametrize("seed", [0, 1, 2, 4])  # learned positions, projections, norms after, rotation of all and none
@pytest.mark.parametrize("family", FAMILIES)
def test_other_families(family, seed, tmp_path, rng, replays):
    save(peer(family, seed), tmp_path / "m")
    assert same_with_and_without(load(tmp_path / "m", device="cpu"), ragged(rng, 3, 30))
    assert replays
