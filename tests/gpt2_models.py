"""GPT-2s with random weights: this project's, transformers' with the same, and what their tokens have in common."""

import numpy as np

from tilewright.generation import language_model
from tilewright.models import decoder
from tilewright.models.gpt2 import GPT2, GPT2Config, own_name
from tilewright.ops import embedding, layernorm, matmul, matmul_argmax

TINY = {"vocab_size": 97, "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 3, "eos_token_id": None}


def random_weights(config: GPT2Config, seed: int = 0, scale: float = 0.3) -> dict[str, np.ndarray]:
    """float32 arrays by name: so large that the best logit is well apart from the others, and no two rows agree."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in config.tensor_shapes().items():
        weights[name] = scale * rng.standard_normal(shape, dtype=np.float32)
        if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")):
            weights[name] += 1
    return weights


def tiny(seed: int = 0, dtype: str = "float32", kind: type = GPT2, **sizes) -> GPT2:
    """A GPT-2 that runs in no time; sizes: fields of GPT2Config. kind: the class, GPT2 or one made of it."""
    config = GPT2Config(**{**TINY, **sizes})
    return kind(config, random_weights(config, seed), dtype=dtype)


def peer(seed: int = 0, **sizes):
    """transformers' GPT-2 of these sizes in float32, ready to run, its weights three times as large as usual."""
    import torch
    import transformers

    torch.manual_seed(seed)
    fields = {"initializer_range": 0.06, "attn_implementation": "eager", "bos_token_id": None, "eos_token_id": None}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**fields, **sizes}))
    with torch.no_grad():  # biases and norms begin as zeros and ones, which would hide that they are mixed up
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn(parameter.shape)
    return model.eval()


def like(other, dtype: str = "float32") -> GPT2:
    """This project's GPT-2 with the configuration and weights of transformers' model."""
    fields = {name: value for name, value in other.config.to_dict().items() if name in GPT2Config.__struct_fields__}
    arrays = {own_name(name): parameter.detach().numpy() for name, parameter in other.named_parameters()}
    return GPT2(GPT2Config(**fields), arrays, dtype=dtype)


def logits_of(model: GPT2, ids) -> np.ndarray:
    """float32 (n, V): the logits after each of n tokens, one after the other, as generation computes them."""
    from tilewright.ops.attention import span

    work, caches, rows = model.backend.workspace(), model.attention.caches(1, len(ids)), []
    for at, token in enumerate(ids):
        spans = np.array([span(0, at, 1, 0)], np.int64)
        batch = model.attention.batch(np.array([token]), np.array([at]), caches, spans)
        rows.append(model.logits(model.forward(batch, work))[0])
    return np.stack(rows)


def peer_logits(other, ids) -> np.ndarray:
    """float32 (n, V): transformers' logits after each of n tokens."""
    import torch

    with torch.no_grad():
        return other(torch.tensor([list(ids)])).logits[0].numpy()


def divergences(tokens, logits, tolerance: float) -> int:
    """How many of n tokens are not the best one of the reference's logits (n, V), which were computed along them.

    Raises AssertionError for one that a difference of `tolerance` in each of the two logits does not explain.
    """
    assert len(tokens) == len(logits), f"{len(tokens)} tokens and {len(logits)} rows of logits"
    assert np.isfinite(logits).all(), "the reference is not finite"
    best, steps = logits.argmax(axis=1), np.arange(len(logits))
    gaps = logits[steps, best].astype(np.float64) - logits[steps, np.asarray(tokens)]
    wrong = np.flatnonzero(gaps > 2 * tolerance)
    if wrong.size:
        at = int(wrong[0])
        raise AssertionError(
            f"token {at} is {tokens[at]}, {best[at]} is better by {gaps[at]:.3g}; {2 * tolerance:.3g} is explained"
        )
    return int((best != tokens).sum())


def save(path, seed: int = 0, *, tokenizer: bool = True, **sizes) -> GPT2Config:
    """A model directory as it comes from elsewhere; with a tokenizer its vocabulary is 257: bytes and end-of-text."""
    import msgspec
    from safetensors.numpy import save_file

    config = GPT2Config(**{**TINY, **({"vocab_size": 257, "eos_token_id": 256} if tokenizer else {}), **sizes})
    path.mkdir()
    save_file(random_weights(config, seed), path / "model.safetensors")
    (path / "config.json").write_bytes(msgspec.json.encode(config))
    if tokenizer:
        byte_tokenizer().save(str(path / "tokenizer.json"))
    return config


def byte_tokenizer():
    """GPT-2's kind of tokenizer without merges: token i is the i-th byte of its alphabet, 256 is <|endoftext|>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|endoftext|>"])
    return made


def unpatched(patch, backend) -> None:
    """Put the operations themselves, and this `backend` function, back in force for a model on the CPU."""
    for module in (embedding, layernorm, matmul, matmul_argmax):
        name = module.__name__.rpartition(".")[2]
        patch.setattr(decoder, name, getattr(module, name))
    patch.setattr(decoder, "prepare", matmul.prepare)
    patch.setattr(decoder, "prepare_argmax", matmul_argmax.prepare)
    patch.setattr(language_model, "backend", backend)
