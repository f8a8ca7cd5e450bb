"""Continuous batching on a GPU. Work is queued so far ahead that the GPU never waits for the host.

Sequences run in lanes; greedy and sampled ones run in different lanes. A launch queues the prefill of all prompts that
fit into a lane, and after it as many decode steps as the lane is certain to need. Meanwhile the host reads requests,
fills another lane, and collects the tokens of an earlier launch. If the host must check the logits or the text of a
sequence, it runs one step at a time, as on a CPU (`step`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter

import numpy as np
import torch

from tilewright.backends.protocol import Array
from tilewright.errors import ResourceError
from tilewright.generation.cuda.drawing import Draws, draws_of
from tilewright.generation.cuda.lanes import LANE, PROMPT_ROWS, REMEDY, Lane, LaneScheduler, fits_a_lane
from tilewright.generation.cuda.sequences import Queue, Sequences
from tilewright.generation.engine import END, Engine
from tilewright.generation.sequences import Answers, Block, Generated, Group, Request

PENDING_BYTES = 2 << 30  # bytes of requested answers; a window full of answers of 1,024 tokens takes less
# While the host queues the kernels of one layer, the GPU computes about QUEUED / width^2 rows (H100, bfloat16, 2026).
QUEUED, LIMB_PRODUCTS = 2.5e10, 3  # float32 takes several products
LOGITS_BYTES = 64 << 20  # bytes of logits at a time; sorting them for log-probabilities takes nine times as much


class CudaEngine(Engine):
    """An `Engine` for a model on a GPU, with the same arguments."""

    ahead, window, takes_blocks, most_pending = LANE, 8 * LANE, True, PENDING_BYTES
    scheduler: LaneScheduler

    def reset(self) -> None:
        """Forget all requests and free the memory."""
        self.scheduler, self.answers = LaneScheduler(self.model, self.memory, self.seed), Answers()
        self.in_flight: deque[Lane] = deque()
        self.partial: dict[int, list[Generated]] = {}  # by request, until all are finished

    def read(self, source: Iterator[Request | Block | None]) -> bool:
        """See `Engine.read`."""
        scheduler, found, more = self.scheduler, list[Request](), 0  # more: sequences of `found`
        while more + scheduler.waits < self.ahead and self.may_read():
            item = next(source, END)
            if isinstance(item, Request):
                found.append(item)
                self.answers.expect(item.params, self.context)
                more += item.params.n
            elif isinstance(item, Block):
                self.add(item, self.answers.expect(item.params, self.context, len(item.prompts)))
            elif item is END or more or scheduler.has_work:
                break
        first = self.answers.read - len(found)
        for params, some in groupby(found, key=attrgetter("params")):
            ids, prompts, _ = zip(*some, strict=True)
            self.add(Block(ids, prompts, params), first)
            first += len(ids)
        return scheduler.has_work

    def add(self, block: Block, first: int) -> None:
        """Queue a block for a lane, or its requests for `step`. first: number of its first request."""
        if not len(block.prompts):
            return
        if fits_a_lane(block.params) and self.scheduler.caches_keys:
            self.scheduler.queue(block, first)
            self.scheduler.forget_kinds(2 * self.window)
            return
        for number, (id, tokens) in enumerate(zip(block.ids, block.prompts, strict=True), first):
            self.scheduler.add(Request(id, tokens, block.params), number)

    def advance(self) -> None:
        """Launch a lane that is not in flight. If none has work, or if nothing may overlap, collect the tokens of the
        oldest launch."""
        for lane in self.scheduler.lanes:
            if lane not in self.in_flight and self.launch(lane):
                if "overlap" not in self.model.backend.without:
                    return
                break
        if self.scheduler.waiting or self.scheduler.running:
            self.answers.complete(self.step())
        if self.in_flight:
            self.collect(self.in_flight.popleft())

    def stepped(self) -> None:
        """Does not call `after_step`, because the scheduler does not count the work that is left in lanes."""

    def step(self) -> list[Group]:
        """Compute one token for each sequence that the host checks. Returns the groups that are complete now."""
        running = self.scheduler.running
        admitted = self.scheduler.admit(PROMPT_ROWS, len(running))
        if not self.scheduler.caches_keys:  # compute the prompts and all tokens after them again
            running, admitted = [], running + admitted
        self.scheduler.running, complete, state = [], list[Group](), self.scheduler.state
        assert state is not None
        if running:
            rows = zip(*((s.tokens[-1], len(s.tokens) - 1, s.slot) for s in running), strict=True)
            ids, positions, slots = map(np.array, rows)
            state.start(ids, positions, slots)
            state.decode(len(running), 1)
            complete += self.append(running, *self.choose(running, state.hidden(len(running))))
        if admitted:
            prompts = Sequences.of([np.array(s.tokens) for s in admitted], np.arange(len(admitted)))
            prompts.slot, prompts.apart = np.array([s.slot for s in admitted]), np.array([s.apart for s in admitted])
            for part, hidden in self.prefill(prompts):
                some = [admitted[i] for i in part.request.tolist()]
                for s, shares in zip(some, part.shares.tolist(), strict=True):
                    s.shares = shares
                complete += self.append(some, *self.choose(some, hidden))
        return complete

    def launch(self, lane: Lane) -> bool:
        """Admit waiting sequences to the lane, and queue their prefill and its next decode steps. Returns False if
        there is nothing to do."""
        decoded = lane.decoded = len(lane)
        admitted = self.scheduler.admit_to(lane)
        if not decoded and not len(admitted):
            return False
        state = self.scheduler.state
        assert state is not None
        lane.sequences = batch = Sequences.joined([lane.sequences, admitted])
        left = batch.limit - batch.count
        left[decoded:] -= 1
        positions = batch.count.copy()
        positions[:decoded] -= 1
        last = batch.tokens[np.arange(len(batch)), batch.count - 1]
        steps = self.scheduler.steps_for(batch.kind, left, self.stop_tokens)
        slots = np.where(left > 0, batch.slot, -1)
        state.start(last, np.minimum(positions, self.scheduler.length - 1), slots, self.draws(lane))
        rows, first = np.cumsum(admitted.count) // PROMPT_ROWS, decoded
        for number in np.unique(rows):
            for part, _ in self.prefill(admitted.pick(slice(*np.searchsorted(rows, [number, number + 1]))), first):
                batch.shares[first : first + len(part)] = part.shares
                first += len(part)
        lane.tokens, lane.copied = state.decode(len(batch), steps)
        self.in_flight.append(lane)
        return True

    def draws(self, lane: Lane) -> Draws | None:
        """How a lane's next tokens are sampled; None if the lane is greedy."""
        if not lane.queue.sampled:
            return None
        batch, decoded = lane.sequences, np.arange(len(lane)) < lane.decoded
        kinds, each = np.unique(batch.kind, return_inverse=True)
        params = [self.scheduler.params[kind] for kind in kinds.tolist()]
        return draws_of(params, each, batch.stream, batch.count - batch.prompt - decoded)

    def prefill(self, prompts: Sequences, first: int | None = None) -> Iterator[tuple[Sequences, torch.Tensor]]:
        """(prompts, hidden states (n, C) after them): all prompts at once, or in halves if they do not fit into the
        GPU's memory. The hidden states are valid until the next ones are requested. first: see
        `DecodeState.prefill`."""
        state = self.scheduler.state
        assert state is not None
        products = LIMB_PRODUCTS if state.backend.between == "float32" else 1
        worth = QUEUED / self.model.sizes.width**2 / products if state.backend.captures else 0
        try:
            hidden = state.prefill(*prompts.rows(worth), first)
        except torch.cuda.OutOfMemoryError as error:
            hidden, what = None, str(error).partition(". ")[0]
        if hidden is not None:
            yield prompts, hidden
            return
        if len(prompts) == 1:
            raise ResourceError(f"the GPU has too little memory for a prompt: {what}", remedy=REMEDY)
        state.release_prefills()
        torch.cuda.empty_cache()
        half = len(prompts) // 2
        yield from self.prefill(prompts.pick(slice(half)), first)
        yield from self.prefill(prompts.pick(slice(half, None)), None if first is None else first + half)

    def collect(self, lane: Lane) -> None:
        """Append the tokens of a lane's launch to its sequences, and finish the sequences that end with them."""
        assert lane.tokens is not None
        if lane.copied is not None:
            lane.copied.synchronize()
        batch, found = lane.sequences, lane.tokens.numpy().T  # (n, 1 + steps)
        lane.tokens = None
        column, rows = np.arange(found.shape[1]), np.arange(len(batch))
        first = (rows < lane.decoded).astype(np.int64)  # decoded rows had the first column's token before
        failed, stopped = found < 0, np.zeros(found.shape, bool)
        for kind in np.unique(batch.kind):
            if stops := self.stop_tokens(int(kind)):
                stopped |= (batch.kind == kind)[:, None] & np.isin(found, stops)
        hit = (failed | stopped) & (column >= first[:, None])
        ends = np.minimum(first + batch.limit - batch.count, found.shape[1])
        ends = np.where(hit.any(axis=1), np.minimum(ends, hit.argmax(axis=1) + 1), ends)
        failed, stopped = failed[rows, ends - 1], stopped[rows, ends - 1]
        again = failed & batch.shares & (rows >= lane.decoded) & (ends == 1)
        batch.append(np.maximum(found, 0), first, ends)
        done = failed | stopped | (batch.count >= batch.limit)
        self.scheduler.free_slots += batch.slot[done].tolist()
        retry(lane.queue, batch.pick(again))
        done &= ~again
        self.finish(lane.queue, batch.pick(done), failed[done], stopped[done])
        lane.sequences = batch.pick(~(done | again))

    def stop_tokens(self, kind: int) -> list[int]:
        """The tokens that end a sequence with the parameters of this number."""
        params = self.scheduler.params[kind]
        return [*params.stop_token_ids, *(() if params.ignore_eos else self.eos)]

    def finish(self, queue: Queue, done: Sequences, failed: np.ndarray, stopped: np.ndarray) -> None:
        """Take the answers of finished sequences, and give them to all requests that wait for the same answer."""
        counts, texts, ready, others = done.count - done.prompt, done.completions(), self.answers.ready, queue.others
        columns = done.request, done.index, done.kind, counts, texts, failed, stopped
        for request, index, kind, count, row, bad, stop in zip(*(column.tolist() for column in columns), strict=True):
            reason = "" if bad else "stop" if stop else "length"
            answer, n = [Generated(index, row[:count], reason, failed=bad)], self.scheduler.params[kind].n
            if n > 1:
                partial = self.partial.setdefault(request, [])
                partial += answer
                if len(partial) < n:
                    continue
                answer = sorted(self.partial.pop(request), key=attrgetter("index"))
            ready[request] = answer
            if request in others:
                ready |= dict.fromkeys(others.pop(request), answer)

    def finite(self, hidden: Array) -> np.ndarray:
        """See `Engine.finite`."""
        return hidden.isfinite().all(1).cpu().numpy()  # type: ignore[attr-defined]

    def rows_of_logits(self) -> tuple[int, int]:
        """See `Engine.rows_of_logits`."""
        return max(1, LOGITS_BYTES // (4 * self.model.sizes.vocabulary)), LOGITS_BYTES

    def logits(self, hidden: Array) -> Array:
        """The logits on the GPU, where they are sampled. If kernels run as Python code, they are on the CPU."""
        logits = self.model.logits(hidden)
        return logits if logits.is_cuda else logits.numpy()  # type: ignore[attr-defined]


def retry(queue: Queue, bad: Sequences) -> None:
    """Queue sequences again, for a prefill without a copied prefix: their prefix may come from a prompt with bad
    values."""
    if len(bad):
        bad.tokens[np.arange(len(bad)), bad.prompt] = -1
        bad.count, bad.apart, bad.shares = bad.prompt.copy(), np.ones(len(bad), bool), np.zeros(len(bad), bool)
        queue.add(bad)
