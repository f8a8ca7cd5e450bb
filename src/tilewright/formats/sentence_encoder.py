"""From text to the token ids that a model takes.

`SentenceEncoder` always gives the same number of ids: it cuts a longer text, and fills up a shorter one with the
padding id. `RaggedEncoder` gives as many ids as a text has, up to the model's limit. The ids depend only on the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tilewright.errors import InputError
from tilewright.formats.tokenizer import Tokenizer

CHARACTERS = 256  # characters per token of a text that are read; the rest is not passed on and costs no memory
NO_TOKEN = -1  # marks the unused end of a row that is longer than its text
WORD = "a"  # it is encoded to find out which special tokens the tokenizer adds
PAIR = "text_pair"  # the field of a pair's second text
TEXTS = 1024  # texts that the tokenizer gets at once; it encodes them in parallel


class Pair(NamedTuple):
    """Two texts that a model reads together."""

    text: str
    pair: str


Text = str | list[int]  # a text, or its ids
Content = Text | Pair  # the content of a good record


class Encoded(NamedTuple):
    """Texts as token ids. tokens: int32 (n, longest). seconds: int32 (n,), index of the first token of type 1, 0 if a
    text has none. cut: number of texts that were cut."""

    tokens: np.ndarray
    seconds: np.ndarray
    cut: int


class Sizes(Protocol):
    """What a model's configuration says about sentences."""

    @property
    def sequence_length(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def pad_token_id(self) -> int | None: ...


class SentenceEncoder:
    """Texts, or lists of ids that may be shorter, as exactly `length` token ids.

    pad_id: fills them up. vocabulary: the model's; ids are 0 to vocabulary - 1. Raises InputError for a tokenizer with
    more tokens.
    """

    def __init__(self, tokenizer: Tokenizer, *, length: int, pad_id: int, vocabulary: int) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self.length, self._pad_id = length, pad_id
        if tokenizer.size > vocabulary:
            raise self._unfit(f"the tokenizer has {tokenizer.size:,} tokens")

    def checked_pair(self, text: str, pair: str) -> Pair:
        """As `checked`, for two texts. Raises InputError if the model takes only single texts."""
        raise InputError("is given with a second text; the model takes single ones")

    def checked(self, text: str) -> str:
        """The part of a text that can have an effect. Raises InputError for a text without words, with invalid Unicode,
        or that becomes too long in the tokenizer."""
        if not text or text.isspace():
            raise InputError("is empty; a sentence has at least one word")
        text = self._part(text, CHARACTERS * self.length + 1)  # one more, so that `encoded` sees a cut
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"is no valid Unicode: character {error.start} is half of a surrogate pair") from None
        self._tokenizer.check(text)
        return text

    def _part(self, text: str, most: int) -> str:
        """The part of a longer text, up to so many characters, whose tokens may stay."""
        return text[:most]

    def filled(self, ids: Sequence[int]) -> list[int]:
        """The ids, filled up to the length. Raises InputError for no ids, or too many."""
        if not 1 <= len(ids) <= self.length:
            raise InputError(f"has {len(ids)} ids; the model takes 1 to {self.length}")
        return [*ids, *[self._pad_id] * (self.length - len(ids))]

    def rows(self, contents: Sequence[Content]) -> np.ndarray:
        """int32 (n, length) from the results of `checked` and `filled`. Raises InputError as `encoded` does."""
        return self.encoded(contents)[0]

    def encoded(self, contents: Sequence[Content]) -> tuple[np.ndarray, int]:
        """`rows`, and how many of the texts were cut.

        Raises InputError if the tokenizer fails, or gives an id outside the vocabulary.
        """
        found = self.encoded_pairs(contents)
        return found.tokens, found.cut

    def encoded_pairs(self, contents: Sequence[Content]) -> Encoded:
        """As `encoded`, also for pairs."""
        rows: list[Sequence[int]] = []
        seconds, cut, most = np.zeros(len(contents), np.int32), 0, CHARACTERS * self.length
        for first in range(0, len(contents), TEXTS):
            block = contents[first : first + TEXTS]
            texts = iter(self._tokenizer.encode_batch([text for text in block if isinstance(text, str)]))
            both_texts = [pair for pair in block if isinstance(pair, Pair)]
            pairs = iter(self._tokenizer.encode_pairs(both_texts, self.length) if both_texts else ())
            for content in block:
                if isinstance(content, Pair):
                    both, seconds[len(rows)], shorter = next(pairs)
                    cut += shorter or max(map(len, content)) > most
                    rows.append(both)
                    continue
                ids: Sequence[int] = next(texts) if isinstance(content, str) else content
                cut += len(ids) > self.length or len(content) > most
                rows.append(self._shortened(ids))
        found = np.full((len(rows), self._columns(rows)), self._pad_id, np.int32)
        for i, ids in enumerate(rows):
            found[i, : len(ids)] = ids
        if found.max(initial=0) >= self._vocabulary:
            raise self._unfit(f"the tokenizer gave id {found.max():,}")
        return Encoded(found, seconds, cut)

    def _shortened(self, ids: Sequence[int]) -> Sequence[int]:
        return ids[: self.length]

    def _columns(self, rows: Sequence[Sequence[int]]) -> int:
        return self.length

    def _unfit(self, what: str) -> InputError:
        remedy = "use the tokenizer.json that came with the model"
        what = f"{what}; the model's vocabulary has {self._vocabulary:,}"
        return InputError(what, path=self._tokenizer.path, remedy=remedy)


class RaggedEncoder(SentenceEncoder):
    """Texts, or lists of ids, as 1 to `length` token ids. `NO_TOKEN` fills the rows of a batch up to its longest text.

    A longer text loses tokens at its end, or at its start if the tokenizer's `truncation` says so. The special tokens
    that the tokenizer adds stay. prompt: stands before every text. Raises InputError for a length that leaves no token
    of a text.
    """

    def __init__(self, tokenizer: Tokenizer, *, length: int, vocabulary: int, prompt: str = "") -> None:
        super().__init__(tokenizer, length=length, pad_id=NO_TOKEN, vocabulary=vocabulary)
        alone, whole = tokenizer.encode_word(WORD), tokenizer.encode(WORD)
        starts = [i for i in range(len(whole)) if whole[i : i + len(alone)] == alone]
        self._before = starts[0] if alone and starts else 0  # special tokens before a text
        self._after = len(whole) - len(alone) - starts[0] if alone and starts else 0
        self._prompt, self._bare = prompt, not tokenizer.encode("")  # True if no special tokens are added
        if length <= self._before + self._after:
            what = f"a text may have {length} tokens, and {self._before + self._after} of them are special"
            raise InputError(f"{what}: none is left for the text", path=tokenizer.path)
        self.prompt_tokens = len(tokenizer.encode(prompt)) - self._after if prompt else 0  # with special ones
        if self.prompt_tokens + self._after >= length:
            what = (
                f"the prompt has {self.prompt_tokens} tokens, and a text may have {length}: none is left for the text"
            )
            raise InputError(what, path=tokenizer.path, remedy="give a shorter prompt")

    def checked(self, text: str) -> str:
        """The prompt and the text, as the base class checks them. Raises InputError for a text without tokens."""
        if self._prompt:
            if not text or text.isspace():
                raise InputError("is empty; a text has at least one word")
            return super().checked(self._prompt + text)
        part = super().checked(text)
        if self._bare and not self._tokenizer.encode(part):
            raise InputError("has no token; the model reads at least one")
        return part

    def checked_pair(self, text: str, pair: str) -> Pair:
        """The parts of two texts that can have an effect. Raises InputError as `checked` does; its `where` is the field
        of the second text."""
        first = self.checked(text)
        try:
            return Pair(first, super().checked(pair))
        except InputError as error:
            error.where = PAIR
            raise

    def filled(self, ids: Sequence[int]) -> list[int]:
        """The ids unchanged. Raises InputError for no ids, or too many."""
        if not 1 <= len(ids) <= self.length:
            raise InputError(f"has {len(ids)} ids; the model takes 1 to {self.length}")
        return list(ids)

    def _part(self, text: str, most: int) -> str:
        return text[-most:] if self._tokenizer.truncation.side == "left" else text[:most]

    def _shortened(self, ids: Sequence[int]) -> Sequence[int]:
        if len(ids) <= self.length:
            return ids
        if self._tokenizer.truncation.side == "left":
            return [*ids[: self._before], *ids[len(ids) - self.length + self._before :]]
        return [*ids[: self.length - self._after], *ids[len(ids) - self._after :]]

    def _columns(self, rows: Sequence[Sequence[int]]) -> int:
        return max(map(len, rows), default=0)


def encoder_for(tokenizer: Tokenizer | None, config: Sizes) -> SentenceEncoder | None:
    """The encoder of a model; None if it has no tokenizer. Raises InputError if the tokenizer does not fit the
    model."""
    if tokenizer is None:
        return None
    if config.pad_token_id is None:
        what = "config.json has no pad_token_id, with which the tokenizer fills up short sentences"
        raise InputError(what, path=tokenizer.path, remedy="add pad_token_id, or remove tokenizer.json")
    length, vocabulary = config.sequence_length, config.vocab_size
    return SentenceEncoder(tokenizer, length=length, pad_id=config.pad_token_id, vocabulary=vocabulary)
