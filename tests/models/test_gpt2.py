"""GPT-2 against transformers: logits, greedy tokens of ragged prompts, and checkpoints that it wrote."""

import numpy as np
import pytest

import tilewright as tw
from gpt2_models import divergences, like, logits_of, peer, peer_logits, random_weights, tiny
from tilewright.errors import InputError, UsageError
from tilewright.models.gpt2 import GPT2, GPT2Config
from tilewright.ops.attention import span

SMALL = {"vocab_size": 211, "n_positions": 80, "n_embd": 64, "n_layer": 1, "n_head": 2}
MODELS = {
    "one layer": SMALL,
    "head width 32": {**SMALL, "n_embd": 96, "n_layer": 3, "n_head": 3},
    "head width 12": {**SMALL, "n_embd": 36, "n_layer": 2, "n_head": 3},
    "exact gelu": {**SMALL, "activation_function": "gelu"},
    "relu": {**SMALL, "activation_function": "relu"},
    "scaled by layer": {**SMALL, "n_layer": 3, "scale_attn_by_inverse_layer_idx": True},
    "scores not scaled": {**SMALL, "scale_attn_weights": False},
    "odd feed-forward": {**SMALL, "n_inner": 101, "layer_norm_epsilon": 1e-3},
}
GREEDY = tw.SamplingParams(temperature=0, max_tokens=8)


def ragged(rng, count: int, longest: int, vocabulary: int = SMALL["vocab_size"]) -> list[list[int]]:
    """Prompts of 1 to `longest` tokens, both lengths among them."""
    lengths = [1, longest, *rng.integers(1, longest + 1, count - 2)]
    return [rng.integers(0, vocabulary, n).tolist() for n in lengths]


def tolerance(logits: np.ndarray) -> float:
    """What two orders of summing in float32 may differ by: 1e-4 of the logits' scale."""
    return 1e-4 * float(np.abs(logits).max())


def diverging(other, model: GPT2, prompts, params) -> int:
    """How many greedy tokens differ from transformers' choice; all must be explained."""
    found = 0
    for prompt, output in zip(prompts, model.generate(prompts, params), strict=True):
        tokens = output.outputs[0].token_ids
        assert output.prompt_token_ids == list(prompt) and len(tokens) == params.max_tokens
        logits = peer_logits(other, [*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        found += divergences(tokens, logits, tolerance(logits))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_tokens_are_transformers(name, rng):
    other = peer(**MODELS[name])
    model = like(other)
    ids = rng.integers(0, SMALL["vocab_size"], 70)
    wanted = peer_logits(other, ids)
    assert np.abs(wanted).max() > 0.1, "the model says nothing"
    assert np.abs(logits_of(model, ids) - wanted).max() <= tolerance(wanted)
    assert diverging(other, model, ragged(rng, 30, 60), GREEDY) <= 1


def test_transformers_own_generate_takes_the_same_tokens(rng):
    import torch

    other = peer(**MODELS["head width 32"])
    prompts = ragged(rng, 6, 40)
    for prompt, output in zip(prompts, like(other).generate(prompts, GREEDY), strict=True):
        ids = torch.tensor([prompt])
        found = other.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0
        )
        assert output.outputs[0].token_ids == found[0, len(prompt) :].tolist()


def test_a_prompt_at_once_gives_the_bits_of_its_tokens_one_by_one(rng):
    model = tiny()
    ids = rng.integers(0, 97, 60)
    alone = logits_of(model, ids)
    work, caches = model.backend.workspace(), model.attention.caches(60, 60)
    spans = [span(i, 0, i + 1, i * (i + 1) // 2) for i in range(60)]  # every beginning of the text side by side
    rows = np.concatenate([np.arange(i + 1) for i in range(60)])
    hidden = model.forward(model.attention.batch(ids[rows], rows, caches, np.array(spans, np.int64)), work)
    assert model.logits(hidden).tobytes() == alone.tobytes()
    assert model.best(hidden)[0].tolist() == alone.argmax(axis=1).tolist()


def test_equal_logits_choose_the_lowest_id():
    config = GPT2Config(vocab_size=9, n_positions=8, n_embd=16, n_layer=1, n_head=1, eos_token_id=None)
    weights = random_weights(config)
    weights["wte.weight"][:] = weights["wte.weight"][0]
    for params in (GREEDY, tw.SamplingParams(temperature=0, max_tokens=8, logprobs=0)):
        found = next(GPT2(config, weights).generate([[5]], params)).outputs[0].token_ids
        assert found == [0] * 7


@pytest.mark.parametrize("shards", [None, "60KB"])
def test_a_checkpoint_of_transformers_loads_as_it_is(shards, tmp_path, rng):
    other = peer(**MODELS["head width 32"])
    other.save_pretrained(tmp_path, **({"max_shard_size": shards} if shards else {}))
    assert (len(list(tmp_path.glob("*.safetensors"))) > 3) == bool(shards)
    assert diverging(other, tw.load(tmp_path), ragged(rng, 5, 20), GREEDY) == 0


def test_the_end_of_text_is_generation_configs(tmp_path, rng):
    other = peer(**SMALL)
    free = next(like(other).generate([[5, 6]], GREEDY)).outputs[0].token_ids
    other.generation_config.eos_token_id = [free[2], 200]
    other.save_pretrained(tmp_path)
    found = next(tw.load(tmp_path).generate([[5, 6]], GREEDY)).outputs[0]
    assert found.token_ids == free[: free.index(free[2]) + 1] and found.finish_reason == "stop"


def test_the_body_alone_and_half_precision_load_too(tmp_path, rng):
    import torch

    other = peer(**SMALL)
    other.transformer.save_pretrained(tmp_path / "body")
    assert diverging(other, tw.load(tmp_path / "body"), ragged(rng, 5, 20), GREEDY) == 0
    for dtype in (torch.bfloat16, torch.float16):
        rounded = peer(**SMALL).to(dtype)
        rounded.save_pretrained(tmp_path / str(dtype))
        assert diverging(rounded.float(), tw.load(tmp_path / str(dtype)), ragged(rng, 5, 20), GREEDY) == 0


def test_bfloat16_is_near(rng):
    other = peer(**MODELS["head width 32"])
    ids = rng.integers(0, SMALL["vocab_size"], 50)
    wanted, found = peer_logits(other, ids), logits_of(like(other, "bfloat16"), ids)
    error = np.abs(found - wanted).max()
    assert tolerance(wanted) < error < 0.05 * np.abs(wanted).max()


def test_a_token_that_the_gap_does_not_explain_is_caught(rng):
    """The saboteurs: a token swapped for a worse one, one too few, one of the step before."""
    logits = rng.standard_normal((8, 50), dtype=np.float32)
    best = logits.argmax(axis=1)
    assert divergences(best, logits, 1e-4) == 0
    near = logits.copy()
    near[5, (best[5] + 1) % 50] = near[5, best[5]] + 1e-4
    assert divergences(best, near, 1e-4) == 1
    swapped = best.copy()
    swapped[3] = (best[3] + 1) % 50
    for tokens in (swapped, best[:-1], np.roll(best, 1)):
        with pytest.raises(AssertionError, match=r"is better by|7 tokens"):
            divergences(tokens, logits, 1e-4)
    with pytest.raises(AssertionError, match="not finite"):
        divergences(best, np.full_like(logits, np.nan), 1e-4)


def test_a_wrong_weight_is_caught(rng):
    """The saboteur: one of 96 biases of a layer is 1 larger."""
    other = peer(**MODELS["head width 32"])
    model = like(other)
    model.layers[1].attn_out[1][7] += 1
    ids = rng.integers(0, SMALL["vocab_size"], 20)
    wanted = peer_logits(other, ids)
    assert np.abs(logits_of(model, ids) - wanted).max() > 10 * tolerance(wanted)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], r"\(counted from 0\) is empty; a prompt has at least one token\. Leave it out$"),
        ([1.5], "float64"),
        ([[1]], r"shape \(1, 1\)"),
        ([0, 97], "token id 97 at 1 is outside 0 to 96"),
        ([-1], "token id -1 at 0"),
        ([0] * 64, "has 64 tokens; the context of 64 must hold one more"),
        ("text", "no tokenizer.json"),
    ],
)
def test_a_prompt_that_cannot_be_continued(prompt, message):
    outputs = tiny().generate([[3], prompt], GREEDY)
    with pytest.raises(UsageError, match=f"prompt 1.*{message}"):
        list(outputs)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_head": 5}, "n_embd must be a multiple of n_head"),
        ({"n_layer": 0}, "n_layer is 0"),
        ({"n_inner": 0}, "n_inner is 0"),
        ({"activation_function": "swish"}, "'swish'"),
        ({"layer_norm_epsilon": 0.0}, "layer_norm_epsilon"),
        ({"add_cross_attention": True}, "^add_cross_attention is true; cross attention is not"),
        ({"model_type": "gpt_neo"}, "'gpt_neo'"),
    ],
)
def test_a_configuration_that_is_no_gpt2(fields, message):
    with pytest.raises(ValueError, match=message):
        GPT2Config(**fields)


def test_weights_that_do_not_fit_are_named():
    config = GPT2Config(vocab_size=9, n_positions=8, n_embd=16, n_layer=1, n_head=1)
    weights = random_weights(config)
    for change, message in (
        (
            {"h.0.mlp.c_fc.bias": weights["ln_f.bias"]},
            r"h.0.mlp.c_fc.bias is \(16,\); the configuration requires \(64,\)",
        ),
        ({"h.1.ln_1.bias": weights["ln_f.bias"]}, "no such tensor"),
    ):
        with pytest.raises(InputError, match=message):
            GPT2(config, weights | change)
    del weights["wpe.weight"]
    with pytest.raises(InputError, match=r"wpe.weight is missing"):
        GPT2(config, weights)


@pytest.mark.long
@pytest.mark.parametrize(
    ("prompts", "longest", "new", "sizes"),
    [
        (2000, 200, 8, {"n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 5000, "n_positions": 256}),
        (64, 60, 128, {"n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 5000, "n_positions": 256}),
        (24, 200, 8, {"initializer_range": 0.02}),
    ],
    ids=["2000 x 8", "64 x 128", "124M"],
)
def test_many_prompts_and_the_full_size(prompts, longest, new, sizes, rng):
    other = peer(**sizes)
    model, vocabulary = like(other), other.config.vocab_size
    ids = rng.integers(0, vocabulary, longest)
    assert np.abs(logits_of(model, ids) - peer_logits(other, ids)).max() <= 1e-3
    params = tw.SamplingParams(temperature=0, max_tokens=new)
    assert diverging(other, model, ragged(rng, prompts, longest, vocabulary), params) <= prompts * new // 1000


def test_a_number_of_layers_that_would_fill_the_memory_is_refused_at_once():
    with pytest.raises(ValueError, match="n_layer is 3000000; at least 1 and at most 4096"):
        GPT2Config(n_layer=3_000_000)
