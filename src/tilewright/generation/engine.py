"""Continuous batching: sequences of any lengths share each step. Finished ones leave it, and waiting ones are admitted.

`Engine.step` is the whole engine. The answer to a record depends on its tokens, its parameters, its id and the seed. It
does not depend on the batch, because no operation of the model lets one sequence read another.

Three kinds of work are avoided. A prompt that several greedy requests have in common is computed once. A prefix that a
prompt shares with the one before it in sorted order is copied. The last layer computes only the last row of a prompt.
Source of continuous batching: Yu et al., "Orca", OSDI 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from tilewright.backends.protocol import Array
from tilewright.generation.decoder import Batch, Decoder
from tilewright.generation.random_numbers import uniforms
from tilewright.generation.rules import BadWords, Choices, choose, finish
from tilewright.generation.scheduler import WINDOW, Scheduler, rows_of
from tilewright.generation.sequences import Answers, Block, Generated, Group, Request, Running

SAMPLED_ROWS = 64  # if whole logits are needed: their rows at first, and at least
LOGITS_BYTES = 16 << 20  # bytes of logits at a time
PENDING_BYTES = 512 << 20  # bytes of requested answers; 4,096 of 1,024 tokens take less, log-probabilities more
NO_STREAM = np.zeros(4, np.uint32)
END = object()  # marks the end of the requests


class Engine:
    """Turns requests into completions on one model.

    memory: bytes for keys and values; None: the device's default. seed: for requests without a seed. text_of: decodes
    token ids, needed for stop strings. tokens_of: encodes a part of a text, needed for bad words. after_step: `run`
    calls it after each step on a CPU.
    """

    takes_blocks = False  # whether requests may come as `Block`s
    most_pending = PENDING_BYTES
    ahead = window = WINDOW  # the most waiting requests, and the most from the oldest unfinished one to the newest
    scheduler: Scheduler

    def __init__(
        self,
        model: Decoder,
        *,
        eos_token_ids: Sequence[int] = (),
        memory: int | None = None,
        seed: int = 0,
        text_of: Callable[[Sequence[int]], str] | None = None,
        tokens_of: Callable[[str], list[int]] | None = None,
    ) -> None:
        self.model, self.context, self.eos = model, model.sizes.context, frozenset(eos_token_ids)
        self.seed, self.text_of, self.words = seed, text_of, BadWords(tokens_of)
        self.memory = model.attention.memory if memory is None else memory
        self.after_step: Callable[[], object] = lambda: None
        self.work = model.backend.workspace()
        self.reset()

    def reset(self) -> None:
        """Forget all requests and free the memory."""
        self.scheduler, self.answers = Scheduler(self.model, self.memory, self.seed), Answers()
        self.rows: Batch | None = None  # of the last step

    def run(self, requests: Iterable[Request | Block | None]) -> Iterator[list[Generated]]:
        """The n completions of each request, in the order of the requests. Requests are read as they are needed.

        Blocks are allowed only if `takes_blocks`, and not mixed with requests. A None is no request: it asks the engine
        to work on earlier requests before it reads the next.
        """
        source = iter(requests)
        try:
            while self.read(source):
                self.advance()
                yield from self.answers.take()
                self.stepped()
        finally:
            self.scheduler.release()
            self.reset()

    def read(self, source: Iterator[Request | Block | None]) -> bool:
        """Read requests until enough of them wait, or the source has none at the moment. Returns False if there is
        nothing to do."""
        scheduler = self.scheduler
        while len(scheduler.waiting) < self.ahead and self.may_read():
            request = next(source, END)
            if isinstance(request, Request):
                scheduler.add(request, self.answers.expect(request.params, self.context))
            elif request is END or scheduler.has_work:
                break
        return scheduler.has_work

    def may_read(self) -> bool:
        """False if too many requests are unanswered, or if their answers may be too large."""
        answers = self.answers
        return answers.read < answers.taken + self.window and answers.nbytes < self.most_pending

    def advance(self) -> None:
        """Compute one step, and take the answers that it completes."""
        self.answers.complete(self.step())

    def stepped(self) -> None:
        """Called after the answers of a step are taken."""
        self.after_step()

    def step(self) -> list[Group]:
        """Compute one pass of the model: one row per running sequence, and all rows of the prompt per admitted one.
        Then each of them gets one more token. Returns the groups that are complete now."""
        if not self.scheduler.running:
            self.rows = None  # it holds the caches, and larger ones may be allocated now
        batch = self.scheduler.running + self.scheduler.admit()
        ids, positions, spans = rows_of(batch)
        self.rows = self.model.attention.batch(ids, positions, self.scheduler.caches, spans, self.rows)
        hidden = self.model.forward(self.rows, self.work)
        self.scheduler.running = []
        return self.append(batch, *self.choose(batch, hidden))

    def append(
        self, batch: list[Running], tokens: np.ndarray, logprobs: list[dict[int, float] | None], bad: np.ndarray
    ) -> list[Group]:
        """Append a token to each sequence, as `choose` found it. Sequences that are not finished continue to run.
        Returns the groups that are complete now."""
        complete: list[Group] = []
        for sequence, token, found, failed in zip(batch, tokens.tolist(), logprobs, bad.tolist(), strict=True):
            if failed and sequence.shares and not sequence.cached:
                self.scheduler.retry(sequence)
                continue
            sequence.cached = len(sequence.tokens) if self.scheduler.caches_keys else 0
            sequence.tokens.append(token)
            if sequence.group.request.params.logprobs is not None:
                sequence.logprobs.append(found or {})
            if not self.finished(sequence, failed):
                self.scheduler.running.append(sequence)
            elif group := self.scheduler.finish(sequence):
                complete.append(group)
        return complete

    def finished(self, sequence: Running, failed: bool) -> bool:
        """True if the last token ends the sequence. Its completion is then added to its group."""
        params, completion = sequence.group.request.params, sequence.completion
        reason, cut = finish(completion, params, self.eos, self.text_of)
        if reason is None and len(sequence.tokens) >= sequence.limit:
            reason = "length"  # the context is full
        if reason is None and not failed:
            return False
        logprobs = sequence.logprobs if params.logprobs is not None else None
        sequence.group.done[sequence.index] = Generated(sequence.index, completion, reason or "", cut, logprobs, failed)
        return True

    def choose(
        self, batch: list[Running], hidden: Array
    ) -> tuple[np.ndarray, list[dict[int, float] | None], np.ndarray]:
        """(next tokens (n,), requested log-probabilities, which rows have logits that are not finite)."""
        tokens, bad = np.zeros(len(batch), np.int64), ~self.finite(hidden)
        logprobs: list[dict[int, float] | None] = [None] * len(batch)
        simple = np.array([s.only_best for s in batch]) & ~bad
        if simple.any():
            some = hidden if simple.all() else hidden[simple]  # type: ignore[index]
            best, logit = map(self.model.backend.numpy, self.model.best(some))
            tokens[simple], bad[simple] = np.where(np.isfinite(logit), best, 0), bad[simple] | ~np.isfinite(logit)
        others, at, (rows, nbytes) = np.flatnonzero(~simple & ~bad), 0, self.rows_of_logits()
        while at < len(others):
            chosen = others[at : at + rows]
            logits = self.logits(hidden[chosen])  # type: ignore[index]
            found = self.sample([batch[i] for i in chosen], logits)
            tokens[chosen], bad[chosen] = np.maximum(found.tokens, 0), bad[chosen] | found.bad
            for i, values in zip(chosen, found.logprobs, strict=True):
                logprobs[i] = values
            at, rows = at + rows, max(rows, nbytes // (4 * logits.shape[1]))
        return tokens, logprobs, bad

    def finite(self, hidden: Array) -> np.ndarray:
        """bool (n,): which rows of (n, C) contain neither NaN nor infinity."""
        return np.isfinite(hidden).all(axis=1)  # type: ignore[call-overload]

    def rows_of_logits(self) -> tuple[int, int]:
        """(rows of logits in the first step of `choose`, bytes of logits in each later step). Later steps have at least
        as many rows as the first."""
        return SAMPLED_ROWS, LOGITS_BYTES

    def logits(self, hidden: Array) -> Array:
        """The logits (n, V) of hidden (n, C), for `rules.choose`."""
        return self.model.logits(hidden)

    def sample(self, part: list[Running], logits: Array) -> Choices:
        """The next tokens of sequences, chosen by their logits (n, V)."""
        steps = [len(s.tokens) - s.prompt for s in part]
        drawn = uniforms(np.stack([NO_STREAM if s.stream is None else s.stream for s in part]), steps)
        params = [s.group.request.params for s in part]
        return choose(logits, params, drawn, [s.tokens for s in part], steps, self.eos, self.words)
