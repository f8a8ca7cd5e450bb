"""Spans on a GPU: what `spans_of` makes of them on the host, once a step, so that every kernel works on its own.

A piece (slot, first, count, row) is positions of one slot and the rows that they come from; row -1 - s stands for the
same positions of slot s. A tile (slot, first, count, row, end) is queries of one sequence, of `end` positions.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.attention.operands import MOST_ROWS, SPAN, Cache, checked_spans

PIECE = 16  # positions of a piece: 2 KiB of a head of 64 bfloat16 numbers
LEAST = 16  # rows and columns of a product on matrix units
BLOCK = 64  # keys of a block, and positions up to which a prompt is kept and looked at by one program a head
BLOCK_BYTES = 8192  # of a block of keys, and of one of values
TILES = (16, 64)  # queries of a tile: a span is cut into the smallest that hold it whole, else into the largest


@dataclass(frozen=True, eq=False)
class DeviceSpans:
    """Spans that were checked: int64 (n, COLUMNS), inside `slots` slots of `length` positions and `rows` rows.

    block: keys that are looked at together. What kernels read of them is made and copied to `device` when it is first
    asked for, and kept.
    """

    array: np.ndarray
    slots: int
    length: int
    rows: int
    block: int
    device: Any
    tables: dict = field(default_factory=dict)

    def table(self, name: str, make) -> list[tuple[int, int, Any]]:
        """make() -> {key: int array (n, columns)} as [(key, longest sequence, int32 tensor on the device)]."""
        if name not in self.tables:
            self.tables[name] = [(key, longest, uploaded(x, self.device)) for key, longest, x in make() if len(x)]
        return self.tables[name]

    @property
    def alone(self) -> np.ndarray:
        """Which spans are whole prompts of up to a block: bool (n,)."""
        return (self.array[:, SPAN.first] == 0) & (self.array[:, SPAN.length] <= self.block)

    @property
    def kept(self):
        """Pieces of all new positions and of all copied beginnings."""
        return self.table("kept", lambda: [(PIECE, 0, pieces(self.array))])

    @property
    def kept_apart(self):
        """The same without spans that are whole prompts of up to a block."""
        return self.table("kept apart", lambda: [(PIECE, 0, pieces(self.array, self.alone))])

    @property
    def looked(self):
        """Tiles of all queries, by the size of a tile."""
        return self.table("looked", lambda: by_size(self.array, TILES))

    @property
    def looked_apart(self):
        """The same without spans that are whole prompts of up to a block."""
        return self.table("looked apart", lambda: by_size(self.array[~self.alone], TILES))

    @property
    def whole(self):
        """A tile each for spans that are whole prompts of up to a block."""
        return self.table("whole", lambda: by_size(self.array[self.alone], (16, 32, BLOCK)))

    def tiles(self, size: int):
        """int32 (n, 5): all queries in tiles of `size`."""
        found = self.table(f"tiles of {size}", lambda: by_size(self.array, (size,)))
        return found[0][2] if found else uploaded(np.zeros((0, 5), np.int64), self.device)

    @property
    def longest(self) -> int:
        """Positions of the longest sequence."""
        return int((self.array[:, SPAN.first] + self.array[:, SPAN.length]).max(initial=0))


@dataclass(frozen=True, eq=False)
class Steps:
    """One new position a row: int32 tensors slots (n,) (-1: nobody's row) and positions (n,); longest: an upper bound
    of positions + 1."""

    slots: Any
    positions: Any
    longest: int

    def tiles(self, size: int):
        """int32 (n, 5): a tile a row, and of count 0 for nobody's; a tile of any size holds its one query."""
        import torch

        count, rows = self.slots.ge(0).int(), torch.arange(len(self.slots), device=self.slots.device).int()
        return torch.stack([self.slots, self.positions, count, rows, self.positions + 1], dim=1)

    def pieces(self):
        """int32 (n, 4): a piece a row, and of count 0 for nobody's."""
        return self.tiles(1)[:, :4].contiguous()


def spans_of(spans, cache: Cache, device=None) -> DeviceSpans:
    """Spans for every cache of these sizes, so that a model of many layers has them checked and copied once.

    spans: n entries of `span`, or int64 (n, 5) NumPy. device: the cache's unless given. Sources may be slots that
    earlier spans of the same call fill, in chains too. Raises UsageError if a span leaves the cache, if two are of one
    slot, if one begins with more positions than its source has, or if a later one writes where it copies from.
    """
    slots, length = cache.keys.shape[0], cache.length
    array = checked_spans(spans, cache, MOST_ROWS).array
    if np.bincount(array[:, SPAN.slot], minlength=1).max() > 1:
        raise UsageError(f"attention: two spans are of slot {np.bincount(array[:, SPAN.slot]).argmax()}: one a call")
    rows = int((array[:, SPAN.row] + array[:, SPAN.length]).max(initial=0))
    place = cache.keys.device if device is None else device
    return DeviceSpans(array, slots, length, rows, block_of(cache), place)


def uploaded(array: np.ndarray, device):
    """An int32 tensor on the device, by a copy that is queued."""
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(array, np.int32))
    return tensor.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else tensor


def block_of(cache: Cache) -> int:
    """Keys of a block: up to BLOCK, by the bytes of a row. It decides the bits, and follows from D and dtype."""
    row = (1 << (cache.D - 1).bit_length()) * cache.keys.itemsize
    return max(LEAST, min(BLOCK, BLOCK_BYTES // row))


def cut(starts: np.ndarray, counts: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ranges cut into parts of up to `size`: (range of each part, first, count)."""
    parts = -(-counts // size)
    which = np.repeat(np.arange(len(counts)), parts)
    offset = size * (np.arange(len(which)) - np.repeat(np.cumsum(parts) - parts, parts))
    return which, starts[which] + offset, np.minimum(counts[which] - offset, size)


def by_size(spans: np.ndarray, sizes: tuple[int, ...]) -> list[tuple[int, int, np.ndarray]]:
    """[(size, longest sequence, tiles int64 (n, 5))]: each span in the smallest size that holds it, else the largest.

    The last queries of a sequence, which look at most keys, come first.
    """
    found = []
    choice = np.minimum(np.searchsorted(sizes, spans[:, SPAN.length]), len(sizes) - 1)
    for i, size in enumerate(sizes):
        mine = spans[choice == i]
        ends = mine[:, SPAN.first] + mine[:, SPAN.length]
        which, first, count = cut(mine[:, SPAN.first], mine[:, SPAN.length], size)
        row = mine[which, SPAN.row] + first - mine[which, SPAN.first]
        tiles = np.stack([mine[which, SPAN.slot], first, count, row, ends[which]], axis=1)
        found.append((size, int(ends.max(initial=0)), tiles[::-1]))
    return found


def pieces(spans: np.ndarray, without: np.ndarray | None = None) -> np.ndarray:
    """int64 (n, 4): pieces of the spans' rows and of the beginnings that they copy; `without` bool (n,): whose rows are
    kept by others."""
    rows = spans if without is None else spans[~without]
    segments = np.concatenate([rows[:, [SPAN.slot, SPAN.first, SPAN.length, SPAN.row]], copied(spans)])
    which, first, count = cut(segments[:, 1], segments[:, 2], PIECE)
    slot, start, _, row = segments[which].T
    return np.stack([slot, first, count, np.where(row < 0, row, row + first - start)], axis=1)


def copied(spans: np.ndarray) -> np.ndarray:
    """Segments (slot, first, count, row) of the beginnings that spans copy; a row below 0 is -1 - slot.

    A span's source is the last span before it in that slot, or the slot as it was. Down a chain of sources, the first
    span that begins before position p owns p. Raises UsageError where a source does not reach as far, or is written
    later.
    """
    n, (slot, first, _, row, source) = len(spans), spans.T
    copies = np.flatnonzero((source >= 0) & (first > 0))
    if not len(copies):
        return np.zeros((0, 4), np.int64)
    parent = _parents(spans, copies)
    root = np.where(parent < 0, np.arange(n), parent)  # of the chain; pointers are doubled until they stay
    while (root[root] != root).any():
        root = root[root]
    origin = np.where(source[root] >= 0, source[root], slot[root])  # the slot that has what no span owns
    while True:  # skip sources that begin at the same place or later: they own nothing of it
        skip = (parent >= 0) & (first[parent] >= first)
        if not skip.any():
            break
        parent[skip] = parent[parent[skip]]
    found, high, owner = [], first[copies], parent[copies]
    while len(copies):
        low = np.where(owner < 0, 0, first[owner])
        place = np.where(owner < 0, -1 - origin[copies], row[owner])
        found.append(np.stack([slot[copies], low, high - low, place], axis=1))
        more = low > 0
        copies, high, owner = copies[more], low[more], parent[owner[more]]
    return np.concatenate(found)


def _parents(spans: np.ndarray, copies: np.ndarray) -> np.ndarray:
    """The span that each span copies from, -1 for none or one of an earlier call: int64 (n,)."""
    n, (slot, first, count, _, source) = len(spans), spans.T
    holder = np.full(max(slot.max(), source.max()) + 1, -1)
    holder[slot] = np.arange(n)
    found, parent = holder[source[copies]], np.full(n, -1)
    before = (found >= 0) & (found < copies)
    parent[copies] = np.where(before, found, -1)
    later = (found > copies) & (first[found] < first[copies])
    short = before & ((first + count)[found] < first[copies])
    for wrong, why in ((later, "which a later span writes"), (short, "which has fewer")):
        if wrong.any():
            i = int(copies[np.argmax(wrong)])
            what = f"it begins with {first[i]} positions of slot {source[i]}, {why}"
            raise UsageError(f"attention: span {i} is {spans[i].tolist()}: {what}")
    return parent
