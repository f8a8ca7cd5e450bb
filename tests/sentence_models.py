"""Random sentence-transformers directories, saved as users save theirs, and what the library computes with them."""

from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from bert_models import saved

POOLINGS = ("mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
PROMPTS = {"query": "good film . ", "passage": "the "}


def saved_sentences(
    family: str, seed: int, folder: Path, *, poolings: list[str] | None = None, include_prompt: bool = True, **options
) -> SentenceTransformer:
    """A random model of the family with random modules, saved to the folder.

    poolings: None: random ones. options: of SentenceTransformer, such as `default_prompt_name`.
    """
    rng = np.random.default_rng(seed)
    saved(family, seed, folder.parent / f"{folder.name}-encoder")
    torch.manual_seed(seed)
    encoder = Transformer(str(folder.parent / f"{folder.name}-encoder"))
    width = encoder.get_embedding_dimension()
    chosen = poolings or [str(name) for name in rng.choice(POOLINGS, int(rng.integers(1, 3)), replace=False)]
    modules = [encoder, Pooling(width, tuple(chosen), include_prompt=include_prompt)]
    size = width * len(chosen)
    if rng.integers(2):
        activation = (torch.nn.Tanh(), torch.nn.Identity())[int(rng.integers(2))]
        modules.append(Dense(size, 24, bias=bool(rng.integers(2)), activation_function=activation))
    if rng.integers(2):
        modules.append(Normalize())
    model = SentenceTransformer(modules=modules, prompts=PROMPTS, device="cpu", **options)
    model.save(str(folder))
    return model
