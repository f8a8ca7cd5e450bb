"""Which sequences run on a GPU. They run in lanes, so that the host can update one lane while the GPU computes
another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from tilewright.errors import ResourceError
from tilewright.generation.cuda.attention import CudaAttention
from tilewright.generation.cuda.decode_state import STEPS, DecodeState
from tilewright.generation.cuda.sequences import Queue, Sequences
from tilewright.generation.decoder import Decoder
from tilewright.generation.random_numbers import streams_of
from tilewright.generation.sampling import SamplingParams
from tilewright.generation.scheduler import Scheduler
from tilewright.generation.sequences import Block

LANES = 3  # one runs on the GPU, one is queued after it, the host works on one
LANE = 2560  # the most sequences of a lane
PROMPT_ROWS = 1 << 16  # rows of prompts in a pass
STOPPING = 16  # the most steps that are queued if a token may end a sequence before its limit
WASTE = 8  # useful rows for each row that is computed for a finished sequence
ROUND = 16  # the length of slots is a multiple of so many positions, so that the next engine can reuse the state
REMEDY = "stop what else runs on it, or run on the CPU"


@dataclass(slots=True, eq=False)
class Lane:
    """Sequences that are decoded together, and the queue from which they come.

    decoded: number of sequences of the lane before the last launch, which needed no prefill in it. tokens, copied: see
    `DecodeState.decode`.
    """

    queue: Queue
    sequences: Sequences = field(default_factory=Sequences.none)
    decoded: int = 0
    tokens: torch.Tensor | None = None
    copied: torch.cuda.Event | None = None

    def __len__(self) -> int:
        return len(self.sequences)


class LaneScheduler(Scheduler):
    """A `Scheduler` with lanes. A request runs in a lane if it needs only tokens, and if these follow from the logits
    alone. For other requests the host checks every step, as on a CPU. Without a KV cache all requests run so."""

    recomputed = LANES * PROMPT_ROWS

    def __init__(self, model: Decoder, memory: int, seed: int) -> None:
        super().__init__(model, memory, seed)
        assert isinstance(model.attention, CudaAttention)
        self.attention, self.most = model.attention, LANE
        self.greedy, self.sampled = Queue(False, shares=self.shares), Queue(True)
        self.lanes = [Lane(self.greedy) for _ in range(LANES)]
        self.params: dict[int, SamplingParams] = {}  # by the number of their kind
        self.state: DecodeState | None = None

    @property
    def is_busy(self) -> bool:
        """True if sequences are running."""
        return bool(self.running) or any(map(len, self.lanes))

    @property
    def waits(self) -> int:
        """Sequences that wait."""
        return len(self.waiting) + len(self.greedy) + len(self.sampled)

    @property
    def has_work(self) -> bool:
        """True if sequences wait or run."""
        return self.waits > 0 or self.is_busy

    def queue(self, block: Block, first: int) -> None:
        """Put the sequences of a block into the queue of a lane. first: number of its first request."""
        params, n, numbers = block.params, block.params.n, np.arange(first, first + len(block.prompts))
        kind = self.kind_of(params)
        self.params[kind] = params
        new = Sequences.of([p for p in block.prompts for _ in range(n)], np.repeat(numbers, n), kind)
        new.apart = np.full(len(new), not self.shares)
        new.limit = np.minimum(new.prompt + params.max_tokens, self.context)
        if not params.greedy:
            seed = self.seed if params.seed is None else params.seed
            new.index = np.tile(np.arange(n), len(block.prompts))
            new.stream = streams_of(seed, block.ids, range(n))
        (self.greedy if params.greedy else self.sampled).add(new)

    def forget_kinds(self, most: int) -> None:
        """If there are more than `most`, keep only the parameters of unfinished sequences."""
        if len(self.params) > most:
            parts = [self.greedy.sequences, self.sampled.sequences, *(lane.sequences for lane in self.lanes)]
            used = np.unique(np.concatenate([part.kind for part in parts]))
            self.params = {kind: self.params[kind] for kind in used.tolist()}

    def admit_to(self, lane: Lane) -> Sequences:
        """Waiting sequences for a lane, as many as there are free slots, sorted by their tokens.

        If sequences of one kind (greedy or sampled) wait and no lane runs that kind, the first lane admits no more
        sequences. When it is empty, it changes to that kind.
        """
        running, both = len(lane), [queue for queue in (self.greedy, self.sampled) if len(queue)]
        served = [each.queue for each in self.lanes if len(each)]
        unserved = [queue for queue in both if queue not in served]
        for queue in both:
            queue.order()
        longer = any(queue.sequences.limit[0] > self.length for queue in both)
        if longer and not self.is_busy:
            self.allocate()  # longer slots are allocated when no sequence uses these any more
        elif longer or (running and unserved and lane is self.lanes[0]):
            return Sequences.none()
        if not running:
            lane.queue = max(unserved or both or [lane.queue], key=len)
        admitted = lane.queue.take(min(self.most - running, len(self.free_slots)), self.length)
        self.free_slots.sort(reverse=True)  # the same slots again: the lane's prefill may be captured
        admitted.slot = np.array([self.free_slots.pop() for _ in range(len(admitted))], np.int64)
        return admitted

    def allocate(self) -> None:
        """Allocate a decode state for the longest waiting sequence, with as many slots as fit into the memory."""
        limits = [s.limit for s in self.waiting]
        limits += [int(queue.sequences.limit.max(initial=0)) for queue in (self.greedy, self.sampled)]
        self.length = min(-(-max(limits) // ROUND) * ROUND, self.context)
        slots = self.slots_within_memory(LANES * LANE)
        self.release_state()
        self.state = self._new_state(slots)
        slots, _, self.most = self.state.sizes
        self.free_slots = list(range(slots - 1, -1, -1))

    def _new_state(self, slots: int) -> DecodeState:
        """The state of the last engine, if it has these sizes. Otherwise a new one, with half as many slots until it
        fits into the GPU's memory."""
        while True:
            sizes = slots, self.length, -(-slots // LANES)
            left, self.attention.free = self.attention.free, None
            if isinstance(left, DecodeState) and left.sizes == sizes:
                return left
            if left is not None:
                del left  # free it before new memory is allocated
                torch.cuda.empty_cache()  # otherwise PyTorch would keep the caches of shorter slots
            try:
                return DecodeState(self.model, self.attention, *sizes)
            except torch.cuda.OutOfMemoryError as error:
                what = str(error).partition(". ")[0]
            if slots == 1:
                raise ResourceError(f"the GPU has too little memory for one sequence: {what}", remedy=REMEDY)
            slots //= 2
            torch.cuda.empty_cache()

    def release_state(self) -> None:
        """Leave the decode state to the next engine."""
        if self.state is not None:
            self.attention.free, self.state = self.state, None

    def release(self) -> None:
        """See `Scheduler.release`."""
        self.release_state()

    def steps_for(self, kinds: np.ndarray, left: np.ndarray, stops: Callable[[int], list[int]]) -> int:
        """The number of steps to queue for sequences that may still get `left` tokens (n,).

        It is the largest for which rows of sequences that are already finished are at most one in WASTE useful rows.
        """
        n = len(left)
        most = min(int(left.max()), STOPPING if any(stops(int(kind)) for kind in np.unique(kinds)) else STEPS)
        unfinished = n - np.cumsum(np.bincount(np.minimum(left, most), minlength=most + 1))  # after 0, 1, 2 ... steps
        useful, done = np.cumsum(unfinished[:most]), np.arange(1, most + 1)
        fits = np.flatnonzero((done * n - useful) * WASTE <= useful)
        return int(fits[-1]) + 1 if len(fits) else min(most, 1)


def fits_a_lane(params: SamplingParams) -> bool:
    """True if a request needs only tokens, if these follow from the logits alone, and if only tokens end them."""
    return params.logprobs is None and params.plain and not params.min_tokens and not params.stop
