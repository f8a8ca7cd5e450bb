"""Requests, the sequences that an engine runs for them, and the completions in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from tilewright.generation.sampling import SamplingParams

Id = str | int


class Request(NamedTuple):
    """A prompt: int (n,) token ids, 0 < n < the model's context. id: its random numbers depend on it."""

    id: Id
    token_ids: np.ndarray
    params: SamplingParams


class Block(NamedTuple):
    """Requests with the same parameters."""

    ids: Sequence[Id]
    prompts: Sequence[np.ndarray]
    params: SamplingParams


class Generated(msgspec.Struct, gc=False):
    """One completion. finish_reason: "stop" or "length". text_end: number of characters of its text to keep; None: all.

    logprobs: see `rules.choose`. failed: the logits were not finite from this token on.
    """

    index: int
    token_ids: list[int]
    finish_reason: str
    text_end: int | None = None
    logprobs: list[dict[int, float]] | None = None
    failed: bool = False


@dataclass(slots=True, eq=False)
class Running:
    """A sequence: a prompt and one completion of it.

    tokens: of both. prompt: number of tokens of the prompt. limit: the largest number of tokens. slot: in the caches,
    -1 before it is admitted. cached: number of positions whose keys and values are in the caches. shares: its prefix
    was copied from another sequence. apart: its prefix must not be copied. best: after min_tokens it needs only the
    best token, and not the logits. stream: identifies its random numbers; None if greedy.
    """

    group: Group
    index: int
    tokens: list[int]
    prompt: int
    limit: int
    slot: int = -1
    cached: int = 0
    shares: bool = False
    apart: bool = False
    best: bool = False
    stream: np.ndarray | None = None
    logprobs: list[dict[int, float]] = field(default_factory=list)

    @property
    def completion(self) -> list[int]:
        """The tokens after the prompt."""
        return self.tokens[self.prompt :]

    @property
    def only_best(self) -> bool:
        """True if only the best next token is needed, and not the logits."""
        return self.best and len(self.tokens) - self.prompt >= self.group.request.params.min_tokens


@dataclass(slots=True, eq=False)
class Group:
    """All completions of a request. numbers: the requests that they answer, in input order. key: equal for greedy
    requests with the same answer. done: finished completions by their index."""

    request: Request
    numbers: list[int]
    key: tuple[bytes, int]
    done: dict[int, Generated] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """True if every completion is finished."""
        return len(self.done) == self.request.params.n


class Answers:
    """Completions in the order of the requests. nbytes: an upper bound for the answers that were requested and not yet
    taken. read, taken: numbers of requests."""

    def __init__(self) -> None:
        self.read = self.taken = self.nbytes = 0
        self.sizes: deque[int] = deque()
        self.ready: dict[int, list[Generated]] = {}

    def expect(self, params: SamplingParams, context: int, count: int = 1) -> int:
        """Add `count` requests, and return the number of the first of them. context: positions of the model."""
        each, first = params.answer_bytes(context), self.read
        self.sizes.extend([each] * count)
        self.nbytes += count * each
        self.read += count
        return first

    def complete(self, groups: Iterable[Group]) -> None:
        """Store the answers of groups that are complete."""
        for group in groups:
            completions = [group.done[i] for i in sorted(group.done)]
            self.ready |= dict.fromkeys(group.numbers, completions)

    def take(self) -> Iterator[list[Generated]]:
        """The answers that are next in order."""
        while self.taken in self.ready:
            self.nbytes -= self.sizes.popleft()
            self.taken += 1
            yield self.ready.pop(self.taken - 1)
