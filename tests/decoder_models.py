"""Random decoders of the families besides GPT-2, saved by transformers as users save theirs, and what they must agree
with transformers on."""

from pathlib import Path

import numpy as np
import torch
import transformers

import tilewright as tw
from gpt2_models import byte_tokenizer, divergences, logits_of, peer_logits
from tilewright.models.decoder import DecoderModel
from tilewright.ops.attention import span

VOCABULARY, CONTEXT = 131, 60
TOLERANCE = 1e-4  # of the logits' scale: what two orders of summing in float32 may differ by
GREEDY = tw.SamplingParams(temperature=0, max_tokens=5)
SAVED = ("single", "sharded", "body", "bfloat16", "float16")  # ways in which users save a model


def opt(rng: np.random.Generator, seed: int) -> transformers.OPTConfig:
    """Every variant of OPT that the configuration can describe is met by ten seeds."""
    heads = int(rng.choice([1, 2, 3, 4]))
    width = heads * int(rng.choice([5, 8, 16, 32]))
    return transformers.OPTConfig(
        vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, hidden_size=width, num_attention_heads=heads,
        num_hidden_layers=int(rng.integers(1, 4)), ffn_dim=int(rng.integers(8, 150)), init_std=0.15,
        word_embed_proj_dim=int(rng.integers(3, 40)) if seed % 3 == 1 else None,
        do_layer_norm_before=seed % 4 != 1, enable_bias=seed % 5 != 2, layer_norm_elementwise_affine=seed % 5 != 3,
        activation_function=("relu", "gelu", "relu", "gelu_new")[seed % 4], tie_word_embeddings=seed % 3 != 2,
        bos_token_id=None, eos_token_id=None, pad_token_id=1,
    )  # fmt: skip


def gpt_neox(rng: np.random.Generator, seed: int) -> transformers.GPTNeoXConfig:
    """Every variant of GPT-NeoX that the configuration can describe is met by ten seeds."""
    heads = int(rng.choice([1, 2, 3, 4]))
    width = heads * int(rng.choice([8, 10, 16, 32]))
    factor = (0.25, 1.0, 0.5, 0.6, 0.0)[seed % 5]
    return transformers.GPTNeoXConfig(
        vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, hidden_size=width, num_attention_heads=heads,
        num_hidden_layers=int(rng.integers(1, 4)), intermediate_size=int(rng.integers(8, 150)), initializer_range=0.15,
        hidden_act=("gelu", "gelu_fast", "gelu_new", "relu")[seed % 4], use_parallel_residual=seed % 3 != 1,
        rope_parameters={"rope_type": "default", "rope_theta": (1e4, 500.0)[seed % 2], "partial_rotary_factor": factor},
        attention_bias=seed % 4 != 2, tie_word_embeddings=seed % 5 == 2, layer_norm_eps=(1e-5, 1e-3)[seed % 2],
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip


FAMILIES = {"opt": opt, "gpt_neox": gpt_neox}


def peer(family: str, seed: int, **fields):
    """transformers' model of a random configuration in float32, ready to run. fields: of the configuration."""
    config = FAMILIES[family](np.random.default_rng(seed), seed)
    for name, value in fields.items():
        setattr(config, name, value)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # biases and norms begin as zeros and ones, which would hide that they are mixed up
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn(parameter.shape)
    return model.eval()


def save(other, folder: Path, way: str = "single"):
    """Saves transformers' model in one of the ways SAVED; returns the model with the weights that were saved."""
    if way in ("bfloat16", "float16"):
        other.to(getattr(torch, way)).save_pretrained(folder)  # which rounds the frequencies of the rotation, too
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if way == "body" and other.config.tie_word_embeddings:
        other.base_model.save_pretrained(folder)
        return other
    other.save_pretrained(folder, **({"max_shard_size": "20KB"} if way == "sharded" else {}))
    return other


def save_with_tokenizer(family: str, folder: Path) -> None:
    """A model directory of a random decoder whose tokens are bytes; 256 is the end of a text."""
    save(peer(family, 0, vocab_size=257, eos_token_id=256), folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))


def ragged(rng, count: int, longest: int = CONTEXT - 6) -> list[list[int]]:
    """Prompts of 1 to `longest` tokens, both lengths among them."""
    lengths = [1, longest, *rng.integers(1, longest + 1, count - 2)]
    return [rng.integers(0, VOCABULARY, int(n)).tolist() for n in lengths]


def logits_at_once(model: DecoderModel, ids) -> np.ndarray:
    """float32 (n, V): the logits after each of n tokens; every beginning of the text is a row of one pass."""
    n = len(ids)
    spans = [span(i, 0, i + 1, i * (i + 1) // 2) for i in range(n)]
    rows = np.concatenate([np.arange(i + 1) for i in range(n)])
    batch = model.attention.batch(np.array(ids)[rows], rows, model.attention.caches(n, n), np.array(spans, np.int64))
    return model.logits(model.forward(batch, model.backend.workspace()))


def check(other, model: DecoderModel, rng, tolerance: float = TOLERANCE) -> None:
    """Logits within the bound, the same bits token by token and at once; greedy tokens, alone and in a batch."""
    ids = rng.integers(0, VOCABULARY, CONTEXT)
    wanted = peer_logits(other, ids)
    assert np.abs(wanted).max() > 0.1, "the model says nothing"
    found = logits_of(model, ids)
    assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()
    assert logits_at_once(model, ids[:30]).tobytes() == found[:30].tobytes()
    prompts = ragged(rng, 8)
    together = [output.outputs[0].token_ids for output in model.generate(prompts, GREEDY)]
    for prompt, tokens in zip(prompts, together, strict=True):
        logits = peer_logits(other, [*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        divergences(tokens, logits, tolerance * float(np.abs(logits).max()))
    assert [next(model.generate([prompt], GREEDY)).outputs[0].token_ids for prompt in prompts[:3]] == together[:3]
