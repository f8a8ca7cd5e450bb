"""Which sequences run. Waiting ones are admitted when a slot of the caches is free, in the order of their tokens.

Neighbours in that order have common prefixes, whose keys and values are copied. A greedy request that equals an
unfinished one is not computed again.
"""

from __future__ import annotations

from itertools import chain, count

import numpy as np

from tilewright.errors import ResourceError
from tilewright.generation.decoder import Decoder
from tilewright.generation.random_numbers import stream
from tilewright.generation.sampling import SamplingParams
from tilewright.generation.sequences import Group, Request, Running
from tilewright.ops.attention import Cache, span

WINDOW = 4096  # the most requests from the oldest unfinished one to the newest; sorting works within them
PREFILL_ROWS = 1536  # rows of prompts in a step: enough for fast matrix products, few enough for the caches
MAX_SLOTS = 768  # sequences at once: with more, the matrix products are not faster


class Scheduler:
    """The waiting and the running sequences, and the slots of the caches.

    memory: bytes for keys and values. seed: for requests without a seed. length: positions per slot. shares: prompts
    share prefixes. caches_keys: decode steps reuse keys and values.
    """

    most = MAX_SLOTS  # the most sequences that run at once
    recomputed = PREFILL_ROWS  # positions of all slots, if each step computes all of them again

    def __init__(self, model: Decoder, memory: int, seed: int) -> None:
        self.model, self.memory, self.seed = model, memory, seed
        self.context, without = model.sizes.context, model.backend.without
        self.shares, self.caches_keys = "prefix-sharing" not in without, "kv-cache" not in without
        self.waiting: list[Running] = []
        self.running: list[Running] = []
        self.caches: list[Cache] = []
        self.free_slots: list[int] = []
        self.length = 0
        self.is_sorted = True
        self.greedy_groups: dict[tuple[bytes, int], Group] = {}  # unfinished ones by key
        self.kinds: dict[SamplingParams, int] = {}
        self.kind_numbers = count()
        self.last_kind: tuple[SamplingParams | None, int] = None, -1

    @property
    def is_busy(self) -> bool:
        """True if sequences are running."""
        return bool(self.running)

    @property
    def has_work(self) -> bool:
        """True if sequences wait or run."""
        return bool(self.waiting) or self.is_busy

    def unfinished(self) -> float:
        """How much work is left, in requests. Each counts by its remaining positions, as a share of its limit."""
        every = chain(self.waiting, self.running)
        return sum((1 - s.cached / s.limit) * len(s.group.numbers) / s.group.request.params.n for s in every)

    def add(self, request: Request, number: int) -> None:
        """Turn a request into n waiting sequences. If an equal greedy request is unfinished, it gets the answer of that
        one."""
        ids, params = np.asarray(request.token_ids, np.int64), request.params
        key = ids.tobytes(), self.kind_of(params)
        if self.shares and params.greedy and key in self.greedy_groups:
            self.greedy_groups[key].numbers.append(number)
            return
        group, tokens = Group(request, [number], key), ids.tolist()
        if params.greedy:
            self.greedy_groups[key] = group
        limit = min(len(tokens) + params.max_tokens, self.context)
        for index in range(params.n):
            sequence = Running(group, index, list(tokens), len(tokens), limit, best=params.needs_best_only)
            sequence.apart = not self.shares
            if not params.greedy:
                seed = self.seed if params.seed is None else params.seed
                sequence.stream = stream(seed, request.id, index)
            self.waiting.append(sequence)
        self.is_sorted = False

    def kind_of(self, params: SamplingParams) -> int:
        """A number for parameters. It is equal for equal parameters, as long as not many different ones come between.
        Hashing the parameters every time would take longer than a prompt."""
        if params is not self.last_kind[0]:
            if len(self.kinds) == WINDOW:
                self.kinds.clear()
            self.last_kind = params, self.kinds.setdefault(params, next(self.kind_numbers))
        return self.last_kind[1]

    def admit(self, rows: int = PREFILL_ROWS, running: int = 0) -> list[Running]:
        """Waiting sequences for which a slot is free, each with its slot. rows: number of rows of prompts, after which
        no other sequence is admitted. running: number of sequences that run already."""
        if not self.is_sorted:
            self.waiting.sort(key=lambda s: s.tokens, reverse=True)  # the last is admitted first
            self.is_sorted = True
        admitted: list[Running] = []
        while self.waiting and rows > 0 and running + len(admitted) < self.most:
            sequence = self.waiting[-1]
            if sequence.limit > self.length:
                if self.is_busy or admitted:
                    break  # longer slots are allocated when no sequence uses these any more
                self.allocate()
            if not self.free_slots:
                break
            sequence.slot = self.free_slots.pop()
            admitted.append(self.waiting.pop())
            rows -= len(sequence.tokens)
        return admitted

    def allocate(self) -> None:
        """Allocate caches for the longest waiting sequence, with as many slots as fit into the memory."""
        self.length = max(sequence.limit for sequence in self.waiting)
        slots = self.slots_within_memory(MAX_SLOTS)
        self.caches = []  # freed before new memory is allocated
        self.caches = self.model.attention.caches(slots, self.length)
        self.free_slots = list(range(slots))[::-1]

    def slots_within_memory(self, most: int) -> int:
        """The number of slots of `self.length` positions that fit into the memory, at most `most`. Raises ResourceError
        if none does."""
        each = self.model.attention.cache_bytes(self.length)
        if self.memory < each:
            raise ResourceError(
                f"the keys and values of {self.length} positions take {each:,} bytes; {self.memory:,} are allowed",
                remedy="allow more memory (max_batch_memory, --max-batch-memory on the command line) or fewer tokens "
                "(max_tokens, --max-tokens)",
            )
        if not self.caches_keys:
            most = min(most, max(1, self.recomputed // self.length))
        return min(self.memory // each, most)

    def finish(self, sequence: Running) -> Group | None:
        """Remove a finished sequence from its slot. Returns its group if that is complete now."""
        self.free_slots.append(sequence.slot)
        group = sequence.group
        if not group.is_complete:
            return None
        self.greedy_groups.pop(group.key, None)
        return group

    def retry(self, sequence: Running) -> None:
        """Let a sequence wait again, for a prefill without a copied prefix: its prefix may come from a prompt with bad
        values."""
        self.free_slots.append(sequence.slot)
        sequence.shares, sequence.apart = False, True
        self.waiting.append(sequence)
        self.is_sorted = False

    def release(self) -> None:
        """Leave the caches to the next engine of this model."""
        if self.caches:
            self.model.attention.leave(self.caches)


def rows_of(batch: list[Running]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids and positions of the rows of a step, int64 (rows,), and the spans of the sequences, int64 (n, 5).

    If a prompt shares its prefix with the prompt before it, it has only rows for the rest.
    """
    spans: list[tuple[int, ...]] = []
    ids: list[int] = []
    positions: list[int] = []
    before: Running | None = None
    for sequence in batch:
        first, source = sequence.cached, -1
        if before is not None and first == 0 and not sequence.apart:
            first = common_prefix(before.tokens, sequence.tokens)
            source = before.slot if first else -1
            sequence.shares = source >= 0
        count = len(sequence.tokens) - first
        spans.append(span(sequence.slot, first, count, len(ids), source))
        ids += sequence.tokens[first:]
        positions += range(first, first + count)
        before = sequence if sequence.cached == 0 else None
    return np.array(ids, np.int64), np.array(positions, np.int64), np.array(spans, np.int64)


def common_prefix(before: list[int], tokens: list[int]) -> int:
    """The number of tokens with which both start. The last of `tokens` is never counted, because its logits are
    needed."""
    limit = min(len(before), len(tokens) - 1)
    return next((i for i in range(limit) if before[i] != tokens[i]), limit)
