"""Regular expressions of a tokenizer.json: those whose time is proportional to the text may run in this process.

The library matches by backtracking: `a+[bc]` takes 20 s for 100 KB of "a", and others take hours. The library stops a
single match that takes too long, but not a text with many matches. The files in use have few different patterns. Any
other pattern runs in another process (`tokenizer_process.py`).
"""

from __future__ import annotations

import re

_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = [rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}{a}{_LOWER}{b}" for a, b in ("*+", "+*")]
_SUFFIX = f"(?i:{_CONTRACTIONS})?"

KNOWN = frozenset(
    {
        # GPT-2, RoBERTa, if it is written out; CLIP
        rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+",
        rf"{_CONTRACTIONS}|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+",
        # cl100k and Llama 3; Qwen 2
        rf"(?i:{_CONTRACTIONS})|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
        rf"(?i:{_CONTRACTIONS})|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
        # o200k; Mistral's Tekken
        rf"{_CASED[0]}{_SUFFIX}|{_CASED[1]}{_SUFFIX}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
        rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
        "[0-9][0-9][0-9]",  # Falcon
        " {2,}",  # T5, XLM-R
        r"\w+(?:'\w+)*|[^\w\s]",  # the model critic
    }
)
# one character, or a run of characters of a class: a match needs no backtracking
_CLASS = re.compile(
    r"(\[\^?([^\[\]\\&]|\\[a-zA-Z\]\[\\])+\]|\\[wWsSdD]|\\[pP]\{\^?[A-Za-z]+\}|[^\\\[\](){}.*+?^$|])\+?"
)


def is_linear(pattern: str) -> bool:
    """Whether the time of a pattern is known to be proportional to the text."""
    return pattern in KNOWN or _CLASS.fullmatch(pattern) is not None
