"""The texts that a user wants to score: pairs of a context and a continuation, or texts alone. They become token ids,
and are cut to the model's context on request."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from tilewright.errors import InputError, UsageError
from tilewright.generation.scoring import Wanted

Encode = Callable[[str], list[int]]
Tokens = str | Sequence[int] | np.ndarray
Scorable = Tokens | tuple[Tokens, Tokens]


@dataclass(frozen=True, slots=True)
class Score:
    """The log-probabilities of a continuation, or of all tokens of a text alone.

    token_ids: of the scored tokens. logprobs: natural logarithm of each one's probability, given all tokens before it.
    logprob: their sum. is_greedy: every token is the likeliest one; if several are equal, the lowest id. cut: number of
    context tokens that the model did not read. error: with errors="record", why the text has no scored tokens; its
    logprob is NaN then.
    """

    token_ids: list[int]
    logprobs: list[float]
    logprob: float
    is_greedy: bool
    cut: int = 0
    error: UsageError | InputError | None = None

    @classmethod
    def of_error(cls, error: UsageError | InputError) -> Score:
        """The score of a text that has none."""
        return cls([], [], math.nan, False, error=error)


class Pieces(NamedTuple):
    """One record in the form that the scorer computes. wanted: one for a pair, several windows for a long text."""

    wanted: list[Wanted]
    cut: int = 0

    @property
    def computed(self) -> bool:
        """True if all log-probabilities are known."""
        return all(len(one.logprobs) for one in self.wanted)

    @property
    def failed(self) -> bool:
        """True if a log-probability is not finite."""
        return any(one.failed for one in self.wanted)

    def score(self) -> Score:
        """The score; call it when all are computed."""
        (first, *more), greedy = self.wanted, all(one.greedy for one in self.wanted)
        ids, values = first.tokens[first.start :], first.logprobs
        if more:
            ids = np.concatenate([one.tokens[one.start :] for one in self.wanted])
            values = np.concatenate([one.logprobs for one in self.wanted])
        return Score(ids.tolist(), values.tolist(), float(values.astype(np.float64).sum()), greedy, self.cut)


class ScoringLimits(NamedTuple):
    """Limits of a model and a job. context: tokens that the model reads at once. start: the token that stands before a
    text alone, and before a continuation with an empty context; None: there is none. truncate: cut what is too long."""

    context: int
    start: int | None
    truncate: bool

    def of_pair(self, context: Sequence[int], continuation: Sequence[int]) -> Pieces:
        """The pieces of a continuation with at least one token. Raises UsageError for tokens that do not fit."""
        before = list(context) or [self.start_token("the context is empty")]
        if not continuation:
            raise UsageError("the continuation has no token of its own; at least one is wanted")
        if len(continuation) > self.context:
            rule = f"the model reads {self.context:,} at once"
            raise UsageError(f"the continuation has {len(continuation):,} tokens; {rule}")
        read = len(before) + len(continuation) - 1
        if read > self.context and not self.truncate:
            raise UsageError(self.too_long(f"context and continuation have {read + 1:,} tokens"), remedy=TRUNCATE)
        cut = max(read - self.context, 0)
        tokens = np.array([*before[cut:], *continuation], np.int64)
        return Pieces([Wanted(tokens, len(before) - cut)], cut)

    def of_text(self, tokens: Sequence[int]) -> Pieces:
        """The pieces of a text with at least one token, with the start token before it.

        A text that is longer than the context is divided into windows. The last window is full, and no token is scored
        twice. Source: lm-evaluation-harness, `get_rolling_token_windows`.
        """
        if not tokens:
            raise UsageError("the text has no token; at least one is wanted")
        if len(tokens) > self.context and not self.truncate:
            raise UsageError(self.too_long(f"the text has {len(tokens):,} tokens"), remedy=TRUNCATE)
        every = np.array([self.start_token("a text stands alone"), *tokens], np.int64)
        found, done = [], 0  # number of tokens of the text that are scored
        while done < len(tokens):
            end = min(done + self.context, len(tokens))
            first = max(end - self.context, 0)
            found.append(Wanted(every[first : end + 1], done + 1 - first))
            done = end
        return Pieces(found)

    def start_token(self, why: str) -> int:
        """The start token. Raises UsageError if there is none."""
        if self.start is None:
            raise UsageError(f"{why}, and the model has no end-of-text token to begin with", remedy=PREFIX)
        return self.start

    def too_long(self, what: str) -> str:
        """The message for too many tokens."""
        return f"{what}; the model reads {self.context:,} at once, all but the last"


TRUNCATE = "allow it to be cut (truncate=True, --truncate on the command line), or give fewer tokens"
PREFIX = "give the token (prefix_token=ID, --prefix-token ID on the command line)"


def default_start(encode: Encode | None, ends: Sequence[int]) -> int | None:
    """The token before a text alone, if the user names none: the one that the tokenizer puts before each text, as OPT's
    does, or else the first end-of-text token. None if there is neither."""
    return next(iter([*reversed(encode("") if encode else []), *ends]), None)


def own_tokens(text: str, encode: Encode) -> list[int]:
    """The tokens of a text alone. The tokenizer may put special tokens before each text, which are left out."""
    before, whole = encode(""), encode(text)
    return whole[len(before) :] if whole[: len(before)] == before else whole


def split_pair(context: str, continuation: str, encode: Encode) -> tuple[list[int], list[int]]:
    """Token ids of a context and its continuation, divided as in lm-evaluation-harness: the whole text is encoded at
    once, and spaces at the end of the context belong to the continuation."""
    stripped = context.rstrip()
    context, continuation = stripped, context[len(stripped) :] + continuation
    if not context:
        return [], own_tokens(continuation, encode)
    before = encode(context)
    return before, encode(context + continuation)[len(before) :]


def pieces_of_tokens(context: Tokens | None, scored: Tokens, limits: ScoringLimits, encode: Encode | None) -> Pieces:
    """The pieces of a pair, or of a text alone if the context is None. Token ids are in the vocabulary. Raises
    UsageError."""

    def ids(tokens: Tokens, *, own: bool) -> Sequence[int]:
        if not isinstance(tokens, str):
            return tokens  # type: ignore[return-value]
        if encode is None:
            raise UsageError(NO_TOKENIZER, remedy="give token ids")
        return own_tokens(tokens, encode) if own else encode(tokens)

    if context is None:
        return limits.of_text(ids(scored, own=True))
    if isinstance(context, str) and isinstance(scored, str) and encode is not None:
        return limits.of_pair(*split_pair(context, scored, encode))
    return limits.of_pair(ids(context, own=not len(context)), ids(scored, own=True))


def pieces_of(record: Scorable, name: str, limits: ScoringLimits, encode: Encode | None, vocabulary: int) -> Pieces:
    """The pieces of a record of `LanguageModel.score`. name: for messages. Raises UsageError for one that cannot be
    scored."""
    try:
        if not isinstance(record, tuple):
            return pieces_of_tokens(None, checked(record, vocabulary), limits, encode)
        if len(record) != 2:
            raise UsageError(f"it has {len(record)} parts; a pair (context, continuation) is wanted")
        context, continuation = (checked(cast(Tokens, part), vocabulary) for part in record)
        return pieces_of_tokens(context, continuation, limits, encode)
    except UsageError as error:
        error.message = f"{name}: {error.message}"
        raise


NOT_FINITE = "its log-probabilities are not finite"
NO_TOKENIZER = "it is text, and the model has no tokenizer.json"


def checked(tokens: Tokens, vocabulary: int) -> str | list[int]:
    """A text, or a list of token ids. Raises UsageError for anything else."""
    if isinstance(tokens, str):
        return tokens
    if type(tokens) is list and set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < vocabulary:
        return tokens  # nearly all; an array would take three times as long
    array = np.asarray(tokens)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise UsageError(f"it is {array.dtype} of shape {array.shape}; a text or integer token ids (n,) are wanted")
    if array.size and not (array.min() >= 0 and array.max() < vocabulary):
        wrong = int(array[(array < 0) | (array >= vocabulary)][0])
        raise UsageError(f"it has token id {wrong}; ids are 0 to {vocabulary - 1}")
    found: list[int] = array.tolist()
    return found
