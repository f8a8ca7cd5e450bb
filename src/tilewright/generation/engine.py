"""Generation in batches that never stand still: sequences of any lengths share each step, finished ones leave it and
waiting ones take their place.

`Generator.step` is the whole engine. What a record gets depends on its tokens, its parameters, its id and the seed:
not on the batch, because no operation of the model lets rows of a batch see each other.

Three things are computed once: a prompt that several greedy requests have in common; the beginning that a prompt has in
common with the one before it in sorted order, whose keys and values are copied; and nothing for rows of a prompt that
no later layer looks at. Source of continuous batching: Yu et al., "Orca", OSDI 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count
from typing import Any, Protocol

import numpy as np

from tilewright.errors import ResourceError
from tilewright.generation.rules import BadWords, Choices, choose, stream, uniforms
from tilewright.generation.sampling import SamplingParams, finish
from tilewright.generation.sequences import Block, Generated, Group, Held, Request, Running
from tilewright.ops.attention import Cache, span

WINDOW = 4096  # requests between the oldest unfinished one and the newest read: what sorting can work with
PREFILL_ROWS = 1536  # rows of prompts in a step: enough for the matrix products, little enough for the caches
MAX_SLOTS = 768  # sequences at once: beyond it the matrix products gain nothing more
SAMPLED_ROWS = 64  # rows of logits at first, and at least, where they are needed whole
LOGITS_BYTES = 16 << 20  # of those held at a time
HELD_BYTES = 512 << 20  # of answers asked for: 4,096 of 1,024 tokens are fewer; log-probabilities take much more


class Network(Protocol):
    """What a model must offer to generate; see `gpt2.GPT2`. hidden states are arrays of the device's own kind."""

    def workspace(self) -> Any: ...
    def caches(self, slots: int, length: int) -> list[Cache]: ...
    def cache_bytes(self, length: int) -> int: ...
    def keep(self, caches: list[Cache]) -> None: ...
    def hidden(
        self, ids: np.ndarray, positions: np.ndarray, caches: list[Cache], spans: np.ndarray, work: Any
    ) -> Any: ...
    def finite(self, hidden: Any) -> np.ndarray: ...
    def logits(self, hidden: Any) -> np.ndarray: ...
    def best(self, hidden: Any) -> np.ndarray: ...


class Generator:
    """Turns requests into completions on one model.

    memory: bytes for keys and values. context: positions of the model. seed: for requests that have none. text_of:
    decodes token ids, needed for stop strings; tokens_of: encodes a part of a text, for bad words. stepped: called by
    `run` behind each step, on a CPU.
    """

    takes_blocks = False  # of requests, see `Block`
    most_held = HELD_BYTES
    most = MAX_SLOTS  # sequences that advance together
    ahead = window = WINDOW  # requests waiting at most, and between the oldest unfinished one and the newest read

    def __init__(
        self,
        model: Network,
        *,
        context: int,
        eos_token_ids: Sequence[int],
        memory: int,
        seed: int = 0,
        text_of: Callable[[Sequence[int]], str] | None = None,
        tokens_of: Callable[[str], list[int]] | None = None,
    ):
        self.model, self.context, self.eos = model, context, frozenset(eos_token_ids)
        self.memory, self.seed, self.text_of, self.words = memory, seed, text_of, BadWords(tokens_of)
        self.stepped: Callable[[], object] = lambda: None
        self.work = model.workspace()
        self.caches: list[Cache] = []
        self.length = 0
        self.free: list[int] = []
        self.waiting: list[Running] = []
        self.running: list[Running] = []
        self._sorted = True
        self._kinds: dict[SamplingParams, int] = {}
        self._numbers = count()
        self._kind: tuple[SamplingParams | None, int] = None, -1

    def run(self, requests: Iterable[Request | Block | None]) -> Iterator[list[Generated]]:
        """The n completions of each request, in the order of the requests, which are read as they are needed.

        Blocks only where they are taken. A None among them is no request: it says that earlier ones should get on
        before the next is read.
        """
        try:
            yield from self._run(requests)
        finally:
            self._give_back()

    def _run(self, requests: Iterable[Request | Block | None]) -> Iterator[list[Generated]]:
        source, read, emitted, held = iter(requests), 0, 0, Held()
        answers: dict[int, list[Generated]] = {}
        twins: dict[tuple, Group] = {}
        exhausted = False
        while True:
            while not exhausted and len(self.waiting) < self.ahead and read < emitted + self.window:
                if held.bytes >= self.most_held:
                    break
                request = next(source, END)
                if isinstance(request, Request):
                    held.ask(request.params, self.context)
                    self._enqueue(request, read, twins)
                    read += 1
                elif request is END:
                    exhausted = True
                elif self.waiting or self.busy:
                    break
            if not self.waiting and not self.busy:
                return
            for group in self.step():
                twins.pop(group.key, None)
                for place in group.places:
                    answers[place] = [group.done[i] for i in sorted(group.done)]
            while emitted in answers:
                held.give()
                yield answers.pop(emitted)
                emitted += 1
            self.stepped()

    def unfinished(self) -> float:
        """What is left of the requests that were read, in requests: by positions taken, of those they take at most."""
        there = chain(self.waiting, self.running)
        return sum((1 - s.cached / s.limit) * len(s.group.places) / s.group.request.params.n for s in there)

    def _give_back(self) -> None:
        """The next generator of this model finds the memory of this one's caches, which is new to nobody."""
        self.model.keep(self.caches)
        self.caches, self.length, self.free, self.waiting, self.running = [], 0, [], [], []

    @property
    def busy(self) -> bool:
        """Whether sequences are on their way."""
        return bool(self.running)

    def _enqueue(self, request: Request, place: int, twins: dict[tuple, Group]) -> None:
        """A request becomes n waiting sequences, or one more place of a greedy twin that is not finished."""
        ids, params = np.asarray(request.token_ids, np.int64), request.params
        key = ids.tobytes(), self._number(params)
        if params.greedy and key in twins:
            twins[key].places.append(place)
            return
        group, tokens = Group(request, [place], key), ids.tolist()
        if params.greedy:
            twins[key] = group
        limit = min(len(tokens) + params.max_tokens, self.context)
        best = params.greedy and params.logprobs is None and params.plain
        for index in range(params.n):
            sequence = Running(group, index, list(tokens), len(tokens), limit, best=best)
            if not params.greedy:
                seed = self.seed if params.seed is None else params.seed
                sequence.stream = stream(seed, request.id, index)
            self.waiting.append(sequence)
        self._sorted = False

    def _number(self, params: SamplingParams) -> int:
        """Equal for equal parameters, as long as few others come between: to hash them takes longer than a prompt."""
        if params is not self._kind[0]:
            if len(self._kinds) == WINDOW:
                self._kinds.clear()
            self._kind = params, self._kinds.setdefault(params, next(self._numbers))
        return self._kind[1]

    def step(self) -> list[Group]:
        """One pass of the model: a position for every running sequence, all of the prompt for those that join.

        Returns the groups that are complete with it.
        """
        joining = self._admit()
        batch = self.running + joining
        ids, positions, spans = self._rows(batch)
        hidden = self.model.hidden(ids, positions, self.caches, spans, self.work)
        self.running, complete = self._settle(batch, *self._choose(batch, hidden))
        return complete

    def _settle(self, batch: list[Running], tokens: np.ndarray, logprobs: list, bad: np.ndarray):
        """A token more for each sequence, as `_choose` found it: (those that go on, groups that are complete now)."""
        going: list[Running] = []
        complete: list[Group] = []
        for sequence, token, chances, failed in zip(batch, tokens.tolist(), logprobs, bad.tolist(), strict=True):
            if failed and sequence.shares and not sequence.cached:
                self._retry(sequence)
                continue
            sequence.cached = len(sequence.tokens)
            sequence.tokens.append(token)
            if sequence.group.request.params.logprobs is not None:
                sequence.logprobs.append(chances or {})
            if self._finished(sequence, failed):
                self._leave(sequence, complete)
            else:
                going.append(sequence)
        return going, complete

    def _leave(self, sequence: Running, complete: list[Group]) -> None:
        """A finished sequence gives its slot back; its group joins `complete` if it was the last one of it."""
        self.free.append(sequence.slot)
        group = sequence.group
        if len(group.done) == group.request.params.n:
            complete.append(group)

    def _retry(self, sequence: Running) -> None:
        """Back to the waiting ones: what is not finite may come with a beginning that was copied from a bad prompt."""
        self.free.append(sequence.slot)
        sequence.shares, sequence.apart = False, True
        self.waiting.append(sequence)
        self._sorted = False

    def _admit(self, rows: int = PREFILL_ROWS, there: int = 0) -> list[Running]:
        """Waiting sequences that there is room for, with a slot each, in the order of their tokens.

        rows: of prompts, after which no other sequence joins. there: sequences that they join.
        """
        if not self._sorted:
            self.waiting.sort(key=lambda s: s.tokens, reverse=True)  # the last is taken first
            self._sorted = True
        joining: list[Running] = []
        while self.waiting and rows > 0 and there + len(joining) < self.most:
            sequence = self.waiting[-1]
            if sequence.limit > self.length:
                if self.busy or joining:
                    break  # the caches are laid out anew when those that use them are through
                self._lay_out()
            if not self.free:
                break
            sequence.slot = self.free.pop()
            joining.append(self.waiting.pop())
            rows -= len(sequence.tokens)
        return joining

    def _lay_out(self) -> None:
        """Caches for the longest waiting sequence, as many slots as the memory holds."""
        self.length = max(sequence.limit for sequence in self.waiting)
        slots = self._slots(MAX_SLOTS)
        self.caches = []  # give the memory back before it is taken again
        self.caches = self.model.caches(slots, self.length)
        self.free = list(range(slots))[::-1]

    def _slots(self, most: int) -> int:
        """How many sequences of `self.length` positions the memory holds, at most `most`."""
        each = self.model.cache_bytes(self.length)
        if self.memory < each:
            raise ResourceError(
                f"the keys and values of {self.length} positions take {each:,} bytes; {self.memory:,} are allowed",
                hint="allow more memory (max_batch_memory, --max-batch-memory on the command line) or fewer tokens "
                "(max_tokens, --max-tokens)",
            )
        return min(self.memory // each, most)

    def _rows(self, batch: list[Running]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Token ids and positions of the rows of a step, int64 (rows,), and the spans of each sequence's."""
        spans: list[tuple[int, ...]] = []
        ids: list[int] = []
        positions: list[int] = []
        before: Running | None = None
        for sequence in batch:
            first, source = sequence.cached, -1
            if before is not None and first == 0 and not sequence.apart:
                first = common(before.tokens, sequence.tokens)
                source = before.slot if first else -1
                sequence.shares = source >= 0
            count = len(sequence.tokens) - first
            spans.append(span(sequence.slot, first, count, len(ids), source))
            ids += sequence.tokens[first:]
            positions += range(first, first + count)
            before = sequence if sequence.cached == 0 else None
        return np.array(ids, np.int64), np.array(positions, np.int64), np.array(spans, np.int64)

    def _choose(self, batch: list[Running], hidden: Any) -> tuple[np.ndarray, list, np.ndarray]:
        """(next tokens (n,), log-probabilities of those who asked, whose logits are not finite)."""
        tokens, bad = np.zeros(len(batch), np.int64), ~self.model.finite(hidden)
        logprobs: list[dict[int, float] | None] = [None] * len(batch)
        simple = np.array([only_best(s) for s in batch]) & ~bad
        if simple.any():
            best = self.model.best(hidden if simple.all() else hidden[simple])
            tokens[simple], bad[simple] = np.maximum(best, 0), bad[simple] | (best < 0)
        others, at, (rows, held) = np.flatnonzero(~simple & ~bad), 0, self._portions()
        while at < len(others):
            chosen = others[at : at + rows]
            logits = self._logits(hidden[chosen])
            found = self._sample([batch[i] for i in chosen], logits)
            tokens[chosen], bad[chosen] = np.maximum(found.tokens, 0), bad[chosen] | found.bad
            for i, values in zip(chosen, found.logprobs, strict=True):
                logprobs[i] = values
            at, rows = at + rows, max(rows, held // logits[0].nbytes)
        return tokens, logprobs, bad

    def _portions(self) -> tuple[int, int]:
        """Rows of logits at first, and at least, and bytes of those held at a time."""
        return SAMPLED_ROWS, LOGITS_BYTES

    def _logits(self, hidden: Any) -> Any:
        """(n, V) of hidden (n, C), for `sampler.choose`."""
        return self.model.logits(hidden)

    def _sample(self, part: list[Running], logits: Any) -> Choices:
        """The next tokens of sequences whose logits (n, V) are there."""
        steps = [len(s.tokens) - s.prompt for s in part]
        chances = uniforms(np.stack([s.stream if s.stream is not None else NO_STREAM for s in part]), steps)
        params = [s.group.request.params for s in part]
        return choose(logits, params, chances, [s.tokens for s in part], steps, self.eos, self.words)

    def _finished(self, sequence: Running, bad: bool) -> bool:
        """Whether the sequence ends with its last token; its group then has its completion."""
        params, completion = sequence.group.request.params, sequence.completion
        reason, cut = finish(completion, params, self.eos, self.text_of)
        if reason is None and len(sequence.tokens) >= sequence.limit:
            reason = "length"  # the context is full
        if reason is None and not bad:
            return False
        logprobs = sequence.logprobs if params.logprobs is not None else None
        sequence.group.done[sequence.index] = Generated(sequence.index, completion, reason or "", cut, logprobs, bad)
        return True


NO_STREAM = np.zeros(4, np.uint32)
END = object()  # of the requests


def only_best(sequence: Running) -> bool:
    """Whether only the best token is wanted, not the logits."""
    waits = len(sequence.tokens) - sequence.prompt < sequence.group.request.params.min_tokens
    return sequence.best and not waits


def common(before: list[int], tokens: list[int]) -> int:
    """How many tokens both begin with; the last of `tokens` is never counted, because its logits are wanted."""
    limit = min(len(before), len(tokens) - 1)
    return next((i for i in range(limit) if before[i] != tokens[i]), limit)
