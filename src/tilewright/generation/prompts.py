"""Prompts as a user gives them, texts or token ids. They are checked before an engine gets them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.errors import InputError, UsageError, WrongType
from tilewright.formats.tokenizer import END_OF_TEXT, Tokenizer
from tilewright.generation.decoder import Sizes
from tilewright.ops.core.arrays import NO_NUMBERS

Prompt = str | Sequence[int] | np.ndarray


def checked_prompts(
    prompts: Sequence[Prompt], first: int, sizes: Sizes, tokenizer: Tokenizer | None, *, record: bool = False
) -> list[np.ndarray | UsageError | InputError]:
    """`checked_prompt` of each prompt. first: the number of the first one, for messages. record: a bad prompt gives its
    error; else the error is raised."""
    arrays = [p for p in prompts if isinstance(p, np.ndarray) and p.ndim == 1 and p.dtype.kind in "iu"]
    if arrays and len(arrays) == len(prompts):
        counts = list(map(len, arrays))
        flat = np.concatenate(arrays)  # checked together, because one call of NumPy takes as long as a prompt
        if min(counts) > 0 and max(counts) < sizes.context and flat.min() >= 0 and flat.max() < sizes.vocabulary:
            ends = np.cumsum(counts).tolist()
            flat = flat.astype(np.int64)
            return [flat[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    found: list[np.ndarray | UsageError | InputError] = []
    for number, prompt in enumerate(prompts, first):
        try:
            found.append(checked_prompt(prompt, f"prompt {number} (counted from 0)", sizes, tokenizer))
        except (UsageError, InputError) as error:
            if not record:
                raise
            found.append(error.with_traceback(None))  # its frames would keep all prompts in memory
    return found


def checked_prompt(prompt: Prompt, name: str, sizes: Sizes, tokenizer: Tokenizer | None) -> np.ndarray:
    """Token ids int64 (n,). Raises UsageError if there is none, if one is outside the vocabulary, or if one more
    would exceed the context."""
    if isinstance(prompt, str):
        if tokenizer is None:
            raise UsageError(f"{name} is text, and the model has no tokenizer.json", remedy="give token ids")
        prompt = _encoded(prompt, name, tokenizer)
    try:
        ids = np.asarray(prompt)
    except ValueError as error:
        raise UsageError(f"{name} is no list of token ids: {error}") from error
    if ids.ndim == 1 and ids.size == 0:
        begins = tokenizer is not None and len(tokenizer.encode(END_OF_TEXT)) == 1
        start = f", or give {END_OF_TEXT!r}, with which a text begins" if begins else ""
        raise UsageError(f"{name} is empty; a prompt has at least one token", remedy=f"leave it out{start}")
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        remedy = "give a list of prompts, each a list of token ids" if ids.ndim == 0 else None
        kind = WrongType if ids.ndim == 0 or ids.dtype.kind in NO_NUMBERS else UsageError
        raise kind(f"{name} is {ids.dtype} of shape {ids.shape}; integer token ids (n,) are wanted", remedy=remedy)
    if not (ids.min() >= 0 and ids.max() < sizes.vocabulary):
        at = int(np.argmax((ids < 0) | (ids >= sizes.vocabulary)))
        raise UsageError(f"{name}: token id {ids[at]} at {at} is outside 0 to {sizes.vocabulary - 1}")
    if len(ids) >= sizes.context:
        raise UsageError(f"{name} has {len(ids)} tokens; the context of {sizes.context} must hold one more")
    return ids.astype(np.int64)


def _encoded(text: str, name: str, tokenizer: Tokenizer) -> list[int]:
    try:
        text.encode()
        return tokenizer.encode(text)
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} is no valid text: {error}") from error
