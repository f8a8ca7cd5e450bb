"""Generation on a GPU: what `generation.Generator` promises, queued so far ahead that the GPU never waits.

Sequences run in lanes, greedy ones in some and sampled ones in others. Into one go all prompts that fit, and behind
them as many decode steps as they surely need; while the GPU works on that, the host reads requests, fills the other
lane, and takes in what an earlier one has given. Sequences whose logits or text the host must look at take a step at a
time, as on a CPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np

from tilewright.errors import ResourceError
from tilewright.generation.cuda.decode_state import STEPS
from tilewright.generation.cuda.drawing import Chances, chances
from tilewright.generation.cuda.sequences import Queue, Sequences
from tilewright.generation.engine import END, Block, Generated, Generator, Group, Request, Running
from tilewright.generation.rules import stream
from tilewright.generation.sampling import SamplingParams
from tilewright.generation.sequences import Held

HELD_BYTES = 2 << 30  # of answers asked for: as many of 1,024 tokens as the window has are fewer
LANES = 3  # one on the GPU, one queued behind it, one in the host's hands
LANE = 2560  # sequences of a lane
PROMPT_ROWS = 1 << 16  # of prompts in a pass
STOPPING = 16  # steps ahead where a token may end a sequence before its limit
WASTE = 8  # steps of sequences that go on, for one of a sequence that has ended
LOGITS_BYTES = 64 << 20  # of those that are sampled, at a time; a sort for log-probabilities takes nine times as much
ROUND = 16  # positions: rooms are a multiple of them long, so that the next generator finds one of its size
HINT = "end what else runs on it, or run on the CPU"


@dataclass(slots=True, eq=False)
class Lane:
    """Sequences that are advanced together, and the queue they come from. old: how many were there before the last
    launch; tokens, landed: see `Room.advance`."""

    queue: Queue
    sequences: Sequences = field(default_factory=Sequences.none)
    old: int = 0
    tokens: Any = None
    landed: Any = None


class DeviceGenerator(Generator):
    """A `Generator` for a model on a GPU, with the same arguments."""

    ahead, window, takes_blocks, most_held = LANE, 8 * LANE, True, HELD_BYTES
    model: Any

    def __init__(self, *model: Any, **options: Any):
        super().__init__(*model, **options)
        self._begin()

    def _begin(self) -> None:
        """No request is known, and no memory held."""
        self.greedy, self.sampled = Queue(False), Queue(True)
        self.lanes = [Lane(self.greedy) for _ in range(LANES)]
        self.flying: deque[Lane] = deque()
        self.caches, self.free, self.waiting, self.running = [], [], [], []
        self.kinds: dict[int, SamplingParams] = {}  # number of parameters -> parameters
        self.room: Any = None
        self.length, self.most, self.read, self.held = 0, LANE, 0, Held()
        self.answers: dict[int, list[Generated]] = {}  # not yet given out
        self.partly: dict[int, list[Generated]] = {}  # of requests with several completions, some of which are there

    @property
    def busy(self) -> bool:
        """Whether sequences are on their way."""
        return bool(self.running) or any(len(lane.sequences) for lane in self.lanes)

    @property
    def waits(self) -> bool:
        """Whether sequences have not begun."""
        return len(self.waiting) + self.queued > 0

    @property
    def queued(self) -> int:
        """Sequences that wait for a lane."""
        return len(self.greedy) + len(self.sampled)

    def run(self, requests: Iterable[Request | Block | None]) -> Iterator[list[Generated]]:
        """See `Generator.run`; what it holds on the GPU is left to the next generator."""
        source, emitted, exhausted = iter(requests), 0, False
        groups: dict[tuple, Group] = {}  # of looked-at requests on their way
        try:
            while True:
                exhausted = exhausted or self._read(source, emitted, groups)
                if not self.waits and not self.busy:
                    if exhausted:
                        return
                    continue
                for group in self._turn():
                    groups.pop(group.key, None)
                    for place in group.places:
                        self.answers[place] = [group.done[i] for i in sorted(group.done)]
                while emitted in self.answers:
                    self.held.give()
                    yield self.answers.pop(emitted)
                    emitted += 1
        finally:
            self.model.place.idle = self.room
            self._begin()

    def _read(self, source: Iterator, emitted: int, groups: dict) -> bool:
        """Requests until enough of them wait, or the source has none now: whether it is exhausted."""
        found: list[Request] = []
        more = 0  # sequences that `found` asks for
        while True:
            waiting = more + len(self.waiting) + self.queued
            enough = waiting >= self.ahead or self.read + len(found) >= emitted + self.window
            enough = enough or self.held.bytes >= self.most_held
            item = END if enough else next(source, END)
            if isinstance(item, Request):
                found.append(item)
                self.held.ask(item.params, self.context)
                more += item.params.n
            elif isinstance(item, Block):
                self.held.ask(item.params, self.context, len(item.prompts))
                self._sort_in(item.ids, item.prompts, item.params, groups)
            elif item is END or waiting or self.busy:
                for params, some in groupby(found, key=lambda request: request.params):
                    ids, prompts, _ = zip(*some, strict=True)
                    self._sort_in(ids, prompts, params, groups)
                return item is END and not enough

    def _sort_in(self, ids: Sequence, prompts: Sequence, params: SamplingParams, groups: dict) -> None:
        """Requests join the sequences of a lane, if nothing but tokens is wanted, or the others."""
        first, self.read = self.read, self.read + len(prompts)
        if not len(prompts):
            return
        if not takes_a_lane(params):
            for place, (id, tokens) in enumerate(zip(ids, prompts, strict=True), first):
                self._enqueue(Request(id, tokens, params), place, groups)
            return
        kind, n = self._number(params), params.n
        self.kinds[kind] = params
        new = Sequences.of([p for p in prompts for _ in range(n)], np.repeat(np.arange(first, self.read), n), kind)
        new.limit = np.minimum(new.prompt + params.max_tokens, self.context)
        if not params.greedy:
            seed = self.seed if params.seed is None else params.seed
            new.index = np.tile(np.arange(n), len(prompts))
            new.stream = np.stack([stream(seed, id, index) for id in ids for index in range(n)])
        (self.greedy if params.greedy else self.sampled).add(new)
        if len(self.kinds) > 2 * self.window:
            there = [self.greedy.sequences, self.sampled.sequences, *(lane.sequences for lane in self.lanes)]
            used = np.unique(np.concatenate([each.kind for each in there]))
            self.kinds = {number: self.kinds[number] for number in used.tolist()}

    def _turn(self) -> list[Group]:
        """Give the GPU work for a lane that has none; if there is none, take in what it has done for another.

        Returns the groups of looked-at sequences that are complete with it.
        """
        for lane in self.lanes:
            if lane not in self.flying and self._launch(lane):
                return []
        complete = self.step() if self.waiting or self.running else []
        if self.flying:
            self._land(self.flying.popleft())
        return complete

    def step(self) -> list[Group]:
        """One token for each sequence that the host looks at: the groups that are complete with it."""
        before, joining = self.running, self._admit(PROMPT_ROWS, len(self.running))
        self.running, complete = [], []

        def settle(part: list[Running], hidden: Any) -> None:
            going, done = self._settle(part, *self._choose(part, hidden))
            self.running += going
            complete.extend(done)

        if before:
            ids, count, slots = (
                np.array(c) for c in zip(*((s.tokens[-1], len(s.tokens), s.slot) for s in before), strict=True)
            )
            self.room.start(ids, count - 1, slots)
            self.room.advance(len(before), 1)
            settle(before, self.room.hidden(len(before)))
        if joining:
            columns = Sequences.of([np.array(s.tokens) for s in joining], np.arange(len(joining)))
            columns.slot, columns.apart = np.array([s.slot for s in joining]), np.array([s.apart for s in joining])

            def joined(part: Sequences, hidden: Any, at: int) -> None:
                some = joining[at : at + len(part)]
                for s, shares in zip(some, part.shares.tolist(), strict=True):
                    s.shares = shares
                settle(some, hidden)

            self._prompts(columns, joined, 0)
        return complete

    def _lay_out(self) -> None:
        limits = [s.limit for s in self.waiting]
        limits += [int(queue.sequences.limit.max(initial=0)) for queue in (self.greedy, self.sampled)]
        self.length = max(limits)
        self.length = min(-(-self.length // ROUND) * ROUND, self.context)
        slots = self._slots(LANES * LANE)
        if self.room is not None:
            self.model.place.idle, self.room = self.room, None
        self.room = self._room(slots)
        slots, _, self.most = self.room.sizes
        self.caches, self.free = self.room.caches, list(range(slots))[::-1]

    def _room(self, slots: int):
        """One with that many slots, or half as many until the GPU's memory suffices."""
        import torch

        while True:
            try:
                return self.model.place.room(self.model, slots, self.length, -(-slots // LANES))
            except torch.cuda.OutOfMemoryError as error:
                what = str(error).partition(". ")[0]
            if slots == 1:
                raise ResourceError(f"the GPU has too little memory for one sequence: {what}", hint=HINT)
            slots //= 2
            torch.cuda.empty_cache()

    def _joining(self, lane: Lane) -> Sequences:
        """Waiting sequences for a lane, as many as there is room for, each with a slot, ordered by their tokens.

        The first lane takes no more where greedy or sampled ones wait that have no lane.
        """
        there, both = len(lane.sequences), [queue for queue in (self.greedy, self.sampled) if len(queue)]
        served = [each.queue for each in self.lanes if len(each.sequences)]
        unserved = [queue for queue in both if queue not in served]
        for queue in both:
            queue.order()
        longer = any(queue.sequences.limit[0] > self.length for queue in both)
        if longer and not self.busy:
            self._lay_out()  # the caches are laid out anew when those that use them are through
        elif longer or (there and unserved and lane is self.lanes[0]):
            return Sequences.none()
        if not there:
            lane.queue = max(unserved or both or [lane.queue], key=len)
        joining = lane.queue.take(min(self.most - there, len(self.free)), self.length)
        self.free.sort(reverse=True)  # the same slots for the same lane, whose prompts may be captured
        joining.slot = np.array([self.free.pop() for _ in range(len(joining))], np.int64)
        return joining

    def _launch(self, lane: Lane) -> bool:
        """Let waiting sequences join the lane and queue its next steps; False if there is nothing to do."""
        lane.old = old = len(lane.sequences)
        joining = self._joining(lane)
        if not old and not len(joining):
            return False
        lane.sequences = batch = Sequences.joined([lane.sequences, joining])
        left = batch.limit - batch.count
        left[old:] -= 1
        positions = batch.count.copy()
        positions[:old] -= 1
        last, steps = batch.tokens[np.arange(len(batch)), batch.count - 1], self._steps(batch.kind, left)
        slots = np.where(left > 0, batch.slot, -1)
        self.room.start(last, np.minimum(positions, self.length - 1), slots, self._chances(lane, steps))
        rows = np.cumsum(joining.count) // PROMPT_ROWS
        for part in np.unique(rows):
            some = np.flatnonzero(rows == part)
            part = joining.pick(slice(some[0], some[-1] + 1))
            self._prompts(part, lambda part, hidden, at: self.room.choose(hidden, at), old + int(some[0]))
            batch.shares[old + some] = part.shares
        lane.tokens, lane.landed = self.room.advance(len(batch), steps)
        self.flying.append(lane)
        return True

    def _chances(self, lane: Lane, steps: int) -> Chances | None:
        """Those of a lane's next tokens, if they are sampled."""
        if not lane.queue.sampled:
            return None
        batch, old = lane.sequences, np.arange(len(lane.sequences)) < lane.old
        kinds, each = np.unique(batch.kind, return_inverse=True)
        params = [self.kinds[kind] for kind in kinds.tolist()]
        return chances(params, each, batch.stream, batch.count - batch.prompt - old, steps)

    def _prompts(self, part: Sequences, then: Callable, at: int) -> None:
        """The prompts of `part` through the model: then(part, hidden (n, C), at), in halves if the memory wants it."""
        import torch

        try:
            hidden = self.room.prompt_states(*part.rows())
        except torch.cuda.OutOfMemoryError as error:
            hidden, what = None, str(error).partition(". ")[0]
        if hidden is not None:
            then(part, hidden, at)
            return
        if len(part) == 1:
            raise ResourceError(f"the GPU has too little memory for a prompt: {what}", hint=HINT)
        self.room.forget()
        torch.cuda.empty_cache()
        half = len(part) // 2
        first, second = part.pick(slice(half)), part.pick(slice(half, None))
        self._prompts(first, then, at)
        self._prompts(second, then, at + half)
        part.shares = np.concatenate([first.shares, second.shares])

    def _portions(self) -> tuple[int, int]:
        return max(1, LOGITS_BYTES // (4 * self.model.config.vocab_size)), LOGITS_BYTES

    def _logits(self, hidden: Any) -> Any:
        """They are sampled where they are; in the interpreter, on the CPU, as those of a CPU."""
        logits = self.model.logits_on_device(hidden)
        return logits if logits.is_cuda else logits.numpy()

    def _steps(self, kinds: np.ndarray, left: np.ndarray) -> int:
        """Steps to queue for sequences that may still get `left` tokens (n,).

        As many as leave at most one row in WASTE to sequences that have their tokens already.
        """
        n, stops = len(left), any(self._stops(int(kind)) for kind in np.unique(kinds))
        most = min(int(left.max()), STOPPING if stops else STEPS)
        going = n - np.cumsum(
            np.bincount(np.minimum(left, most), minlength=most + 1)
        )  # that want more than 0, 1, 2 ...
        useful, done = np.cumsum(going[:most]), np.arange(1, most + 1)
        fits = np.flatnonzero((done * n - useful) * WASTE <= useful)
        return int(fits[-1]) + 1 if len(fits) else min(most, 1)

    def _stops(self, kind: int) -> list[int]:
        """The tokens that end a sequence with these parameters."""
        params = self.kinds[kind]
        return [*params.stop_token_ids, *(() if params.ignore_eos else self.eos)]

    def _land(self, lane: Lane) -> None:
        """Take in what a lane's steps have given."""
        if lane.landed is not None:
            lane.landed.synchronize()
        batch, found = lane.sequences, lane.tokens.numpy().T  # (n, 1 + steps)
        lane.tokens = None
        column, rows = np.arange(found.shape[1]), np.arange(len(batch))
        first = (rows < lane.old).astype(np.int64)  # old ones have the token of the first column
        failed, stopped = found < 0, np.zeros(found.shape, bool)
        for kind in np.unique(batch.kind):
            if stops := self._stops(int(kind)):
                stopped |= (batch.kind == kind)[:, None] & np.isin(found, stops)
        hit = (failed | stopped) & (column >= first[:, None])
        ends = np.minimum(first + batch.limit - batch.count, found.shape[1])
        ends = np.where(hit.any(axis=1), np.minimum(ends, hit.argmax(axis=1) + 1), ends)
        failed, stopped = failed[rows, ends - 1], stopped[rows, ends - 1]
        again = failed & batch.shares & (rows >= lane.old) & (ends == 1)
        batch.append(np.maximum(found, 0), first, ends)
        done = failed | stopped | (batch.count >= batch.limit)
        self.free += batch.slot[done].tolist()
        self._retried(lane.queue, batch.pick(again))
        done &= ~again
        self._answer(lane.queue, batch.pick(done), failed[done], stopped[done])
        lane.sequences = batch.pick(~(done | again))

    def _retried(self, queue: Queue, bad: Sequences) -> None:
        """Back to the waiting ones: what is not finite may come with a beginning that was copied from a bad prompt."""
        if len(bad):
            bad.tokens[np.arange(len(bad)), bad.prompt] = -1
            bad.count, bad.apart, bad.shares = bad.prompt.copy(), np.ones(len(bad), bool), np.zeros(len(bad), bool)
            queue.add(bad)

    def _answer(self, queue: Queue, done: Sequences, failed: np.ndarray, stopped: np.ndarray) -> None:
        """Completions of sequences that have ended, for all places that wait for them."""
        counts, texts = done.count - done.prompt, done.completions()
        columns = done.place, done.index, done.kind, counts, texts, failed, stopped
        for place, index, kind, count, row, bad, stop in zip(*(column.tolist() for column in columns), strict=True):
            reason = "" if bad else "stop" if stop else "length"
            answer, n = [Generated(index, row[:count], reason, None, None, bad)], self.kinds[kind].n
            if n > 1:
                there = self.partly.setdefault(place, [])
                there += answer
                if len(there) < n:
                    continue
                answer = sorted(self.partly.pop(place), key=attrgetter("index"))
            self.answers[place] = answer
            if place in queue.others:
                self.answers |= dict.fromkeys(queue.others.pop(place), answer)


def takes_a_lane(params: SamplingParams) -> bool:
    """Whether tokens are all that is wanted, chosen by the logits alone, and only tokens end them."""
    return params.logprobs is None and params.plain and not params.min_tokens and not params.stop
