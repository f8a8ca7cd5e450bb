"""What the engine is asked for, what it answers, and what it knows of a completion on its way."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tilewright.generation.sampling import SamplingParams

Id = str | int


class Request(NamedTuple):
    """A prompt: int (n,) token ids, 0 < n < the model's context. id: names its random numbers."""

    id: Id
    token_ids: np.ndarray
    params: SamplingParams


class Block(NamedTuple):
    """Requests with the same parameters."""

    ids: Sequence[Id]
    prompts: Sequence[np.ndarray]
    params: SamplingParams


class Held:
    """Bytes of the answers that were asked for and are not given out, which are given out in order."""

    def __init__(self) -> None:
        self.sizes: deque[int] = deque()
        self.bytes = 0

    def ask(self, params: SamplingParams, context: int, count: int = 1) -> None:
        """`count` more prompts were read."""
        each = params.answer_bytes(context)
        self.sizes.extend([each] * count)
        self.bytes += count * each

    def give(self) -> None:
        """The oldest answer is given out."""
        self.bytes -= self.sizes.popleft()


@dataclass(slots=True)
class Generated:
    """One completion. finish_reason: "stop" or "length". text_end: characters of its text to keep, None: all.

    logprobs: see `sampler.choose`. failed: the logits were not finite from this token on.
    """

    index: int
    token_ids: list[int]
    finish_reason: str
    text_end: int | None = None
    logprobs: list[dict[int, float]] | None = None
    failed: bool = False


@dataclass(slots=True, eq=False)
class Running:
    """A completion on its way. tokens: prompt and completion; cached: positions whose keys and values are there.

    shares: its beginning was copied from another sequence; apart: it must not be. best: once it has min_tokens, the
    best token is all that is wanted, not the logits.
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
        return self.tokens[self.prompt :]


@dataclass(slots=True, eq=False)
class Group:
    """All completions of a request, and the positions in the input of the prompts that they answer.

    key: equal for greedy requests with the same answer.
    """

    request: Request
    places: list[int]
    key: tuple
    done: dict[int, Generated] = field(default_factory=dict)
