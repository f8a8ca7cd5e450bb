"""Text for a language model: its tokens, the same text in other tokens, and what a model's loss on it is."""

import json
from collections.abc import Callable

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
UNSEEN = -100  # a target that cross_entropy leaves out


def held_out_of(text: str) -> str:
    """Its last tenth."""
    return text[len(text) * 9 // 10 :]


def trained_tokenizer(text: str, size: int) -> Tokenizer:
    """Byte-level BPE of `size` tokens, all bytes among them, so that any text can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def encoded(tokenizer: Tokenizer, text: str) -> torch.Tensor:
    """int64 (n + 1,): the text's tokens after one that stands before every text."""
    return torch.tensor([tokenizer.token_to_id(END), *tokenizer.encode(text).ids])


def parts(tokenizer: Tokenizer) -> torch.Tensor:
    """int64 (vocabulary, 2): the two tokens that each was merged from, -1 for those that were not."""
    found = torch.full((tokenizer.get_vocab_size(), 2), -1)
    for left, right in json.loads(tokenizer.to_str())["model"]["merges"]:
        found[tokenizer.token_to_id(left + right)] = torch.tensor(
            [tokenizer.token_to_id(left), tokenizer.token_to_id(right)]
        )
    return found


def unmerged(ids: torch.Tensor, parts: torch.Tensor, probability: float) -> torch.Tensor:
    """The same text with tokens taken apart at random, and their parts once more, and theirs."""
    for _ in range(3):
        left, right = parts[ids].T
        split = (torch.rand(ids.shape, device=ids.device) < probability) & (left >= 0)
        pairs = torch.stack([torch.where(split, left, ids), torch.where(split, right, -1)], 1).flatten()
        ids = pairs[pairs >= 0]
    return ids


def windows(ids: torch.Tensor, context: int, stride: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(inputs, targets): int64 (W, context), one every `stride` tokens. Each token but the first is the target of one
    window, of the one in which most stand before it: at least context - stride, but at the beginning."""
    n = len(ids) - 1
    at = torch.arange(0, max(n - context + stride, 1), stride)[:, None] + torch.arange(context)
    targets = ids[(at + 1).clamp(max=n)]
    targets[at >= n] = UNSEEN
    targets[1:, : context - stride] = UNSEEN
    return ids[at.clamp(max=n)], targets


def nats(logits: Callable, ids: torch.Tensor, context: int, stride: int, device: str = "cpu") -> float:
    """Sum of -log p over the tokens of a text, of each after those before it in its window.

    logits: ids int64 (B, context) on the device -> float32 (B, context, vocabulary).
    """
    batches = zip(*(part.to(device).split(64) for part in windows(ids, context, stride)), strict=True)
    with torch.no_grad():
        return sum(F.cross_entropy(logits(x).flatten(0, 1), y.flatten(), reduction="sum").item() for x, y in batches)
