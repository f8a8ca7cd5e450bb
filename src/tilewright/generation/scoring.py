"""Log-probabilities of given tokens. Every row of a text is computed at once, and only the scored rows are multiplied
by the output matrix.

Texts are sorted by their tokens, so that neighbours share prefixes. A text that begins like the one before it copies
the keys and values of that prefix, also from the batch before. Texts with the same tokens, such as a question with four
answers of one token, are computed once. Many texts are packed into one forward pass without padding.

The answer to a text does not depend on the others, because no operation of the model lets one sequence read
another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tilewright.backends.protocol import Array
from tilewright.errors import ResourceError
from tilewright.generation.decoder import ScoringDecoder
from tilewright.ops.attention import Cache, span

WINDOW = 4096  # the most texts that are sorted together
WINDOW_TOKENS = 1 << 20  # the most tokens of these texts; meanwhile they are Python objects of 40 bytes
ROWS = {  # rows of a forward pass
    "cpu": 1536,  # enough for fast matrix products, few enough for the caches
    "cuda": 1 << 15,  # of GPT-2: a pass takes an H100 longer than the host needs to queue it
}
IN_FLIGHT = {"cpu": 0, "cuda": 2}  # passes that a GPU computes while the host prepares the next and stores earlier ones
MAX_SLOTS = {"cpu": 256, "cuda": 2048}  # texts of a forward pass
SHORTEST = 64  # positions of the smallest slots; each larger class has twice as many


@dataclass(slots=True, eq=False)
class Wanted:
    """Tokens to score. tokens: int64 (n,), of the context and the continuation, n > 1. start: index of the
    continuation, above 0. logprobs: float32 (n - start,), when computed. greedy: whether each token is the likeliest
    one. failed: whether a log-probability is not finite, or not computed yet."""

    tokens: np.ndarray
    start: int
    logprobs: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    greedy: bool = False
    failed: bool = True


@dataclass(slots=True, eq=False)
class Text:
    """Tokens that the model reads, without the last one of a continuation, and the scores that are wanted of them.

    first: number of positions copied from the text before. slot: in the caches.
    """

    tokens: list[int]
    wanted: list[Wanted]
    first: int = 0
    slot: int = 0

    @property
    def kept(self) -> int:
        """The first position whose hidden state is needed. It predicts the first token of a continuation."""
        return min(wanted.start for wanted in self.wanted) - 1


class Scorer:
    """Scores texts with one model. memory: bytes for keys and values, None: the device's default. rows: of a forward
    pass, half as many each time that a GPU's memory does not suffice. after_pass: is called after each forward pass."""

    def __init__(self, model: ScoringDecoder, memory: int | None = None) -> None:
        self.model, self.memory = model, model.attention.memory if memory is None else memory
        self.rows = ROWS[model.backend.name]
        self.shares = "prefix-sharing" not in model.backend.without
        self.work = model.backend.workspace()
        self.waiting: deque[Callable[[], None]] = deque()  # each stores the answers of a pass
        self.caches: list[Cache] = []
        self.length = 0
        self.after_pass: Callable[[], object] = lambda: None
        self.before: Text | None = None  # the last text of the last batch; its slot is unchanged

    def run(self, source: Iterable[Wanted]) -> Iterator[Wanted]:
        """Yield each `Wanted` with its log-probabilities, in their order. They are read as they are needed."""
        items = iter(source)
        try:
            while block := window(items):
                self.score(block)
                yield from block
        finally:
            if self.caches:
                self.model.attention.leave(self.caches)
            self.waiting.clear()
            self.caches, self.before = [], None

    def score(self, block: Sequence[Wanted]) -> None:
        """Compute the answers of a block."""
        for length, texts in by_length(block, self.model.sizes.context, unique=self.shares):
            texts.sort(key=lambda text: text.tokens)
            self.allocate(length, len(texts))
            at = 0
            while at < len(texts):
                at += self.model.backend.halving(partial(self.pass_from, texts, at), self.rows)
                self.after_pass()
        self.store(0)
        for wanted in block:
            if wanted.failed:  # its pass failed; or a bad value came from the copied prefix or a neighbour's keys
                self.before = None
                text = Text(wanted.tokens[:-1].tolist(), [wanted])
                self.allocate(slot_length(len(text.tokens), self.model.sizes.context), 1)
                self.compute([text])
                self.store(0)
                self.before = None

    def store(self, most: int) -> None:
        """Wait for the oldest passes and store their answers, until at most `most` are in flight. If an error is
        raised, the texts of that pass stay `failed`, so that they are computed again, alone."""
        while len(self.waiting) > most:
            self.waiting.popleft()()

    def pass_from(self, texts: Sequence[Text], at: int, rows: int) -> int:
        """One forward pass of the texts from `at` on; how many they are. rows: of the pass, at most."""
        self.rows = rows
        batch = self.batch(texts, at)
        self.compute(batch)
        return len(batch)

    def allocate(self, length: int, texts: int) -> None:
        """Allocate caches whose slots have `length` positions, for at least one text and the one before. Raises
        ResourceError if one slot does not fit into the memory."""
        each = self.model.attention.cache_bytes(length)
        if self.memory < each:
            raise ResourceError(
                f"the keys and values of {length} positions take {each:,} bytes; {self.memory:,} are allowed",
                remedy="allow more memory (max_batch_memory, --max-batch-memory on the command line)",
            )
        slots = min(self.memory // each, MAX_SLOTS[self.model.backend.name], texts + 1)
        if self.caches and self.length == length and self.caches[0].slots >= slots:
            return
        if self.caches:
            self.model.attention.leave(self.caches)
        self.caches, self.before, self.length = [], None, length  # freed before new memory is allocated
        self.caches = self.model.attention.caches(slots, length)

    def batch(self, texts: Sequence[Text], at: int) -> list[Text]:
        """The texts from `at` on that fit into one pass, each with its slot and its copied prefix."""
        before, rows, found = self.before if self.shares else None, 0, list[Text]()
        slots = [slot for slot in range(self.caches[0].slots) if before is None or slot != before.slot]
        if not slots:
            before, slots = None, [0]
        for text, slot in zip(texts[at:], slots, strict=False):
            text.first = common_prefix(before.tokens, text.tokens, text.kept) if before and self.shares else 0
            if found and rows + len(text.tokens) - text.first > self.rows:
                break
            rows += len(text.tokens) - text.first
            text.slot, before = slot, text
            found.append(text)
        return found

    def compute(self, texts: list[Text]) -> None:
        """Queue one forward pass and its log-probabilities; store those of passes beyond IN_FLIGHT."""
        ids: list[int] = []
        positions: list[int] = []
        spans: list[tuple[int, ...]] = []
        before = self.before
        for text in texts:
            source = before.slot if before is not None and text.first else -1
            count = len(text.tokens) - text.first
            spans.append(span(text.slot, text.first, count, len(ids), source))
            ids += text.tokens[text.first :]
            positions += range(text.first, len(text.tokens))
            before = text
        kept = np.array([len(text.tokens) - text.kept for text in texts])
        arrays = np.array(ids, np.int64), np.array(positions, np.int64)
        rows = self.model.attention.batch(*arrays, self.caches, np.array(spans, np.int64), kept=kept)
        hidden = self.model.forward(rows, self.work)
        self.before = before
        self.waiting.append(self.answers(texts, hidden, np.cumsum(kept) - kept))
        self.store(IN_FLIGHT[self.model.backend.name])

    def answers(self, texts: list[Text], hidden: Array, starts: np.ndarray) -> Callable[[], None]:
        """Queue the log-probabilities of a pass; the returned call stores them. starts: the row of each text's first
        hidden state."""
        every = [wanted for text in texts for wanted in text.wanted]
        first = [start + wanted.start - 1 - text.kept
                 for text, start in zip(texts, starts.tolist(), strict=True) for wanted in text.wanted]  # fmt: skip
        targets = [wanted.tokens[wanted.start :] for wanted in every]
        counts = np.array([len(one) for one in targets])
        offsets = np.cumsum(counts) - counts
        index = np.repeat(np.array(first) - offsets, counts) + np.arange(counts.sum())
        whole = len(index) == len(hidden) and bool((index == np.arange(len(hidden))).all())
        rows = hidden if whole else hidden[self.model.backend.upload(index)]  # type: ignore[index]
        computed = self.model.logprobs(rows, np.concatenate(targets))

        def store() -> None:
            values, greedy = computed()
            likeliest, finite = (np.logical_and.reduceat(x, offsets).tolist() for x in (greedy, np.isfinite(values)))
            for wanted, part, best, good in zip(every, np.split(values, offsets[1:]), likeliest, finite, strict=True):
                wanted.logprobs, wanted.greedy, wanted.failed = part, best, not good

        return store


def window(items: Iterator[Wanted]) -> list[Wanted]:
    """The next items, which are sorted together."""
    found, tokens = list[Wanted](), 0
    for wanted in items:
        found.append(wanted)
        tokens += len(wanted.tokens)
        if len(found) == WINDOW or tokens >= WINDOW_TOKENS:
            break
    return found


def slot_length(tokens: int, context: int) -> int:
    """The number of positions of the slots for a text: a power of two, at most the context."""
    return min(max(SHORTEST, 1 << (tokens - 1).bit_length()), context)


def by_length(block: Sequence[Wanted], context: int, *, unique: bool) -> Iterator[tuple[int, list[Text]]]:
    """(positions of a slot, texts that need such slots), the shortest first. unique: equal texts are computed once."""
    classes: dict[int, dict[object, Text]] = {}
    for wanted in block:
        read = wanted.tokens[:-1]
        texts = classes.setdefault(slot_length(len(read), context), {})
        key: object = read.tobytes() if unique else id(wanted)
        if key in texts:
            texts[key].wanted.append(wanted)
        else:
            texts[key] = Text(read.tolist(), [wanted])
    for length in sorted(classes):
        yield length, list(classes[length].values())


def common_prefix(before: list[int], tokens: list[int], most: int) -> int:
    """The number of tokens with which both start, at most `most`."""
    limit = min(len(before), len(tokens), most)
    if before[:limit] == tokens[:limit]:
        return limit
    return next(i for i in range(limit) if before[i] != tokens[i])
