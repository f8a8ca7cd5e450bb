"""Checked spans, and the tables that GPU kernels read of them.

The host computes the tables once per step, so that no program depends on another one. A piece (slot, first, count, row)
is positions of one slot and the rows that they are copied from; row -1 - s stands for the same positions of slot s. A
tile (slot, first, count, row, end) is queries of one sequence, which has `end` positions.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.attention.operands import COLUMNS, MOST_ROWS, SPAN, Cache, DeviceCache

PIECE = 16  # positions of a piece: 2 KiB of a head of 64 bfloat16 elements
LEAST = 16  # rows and columns of a product on matrix units
BLOCK = 64  # keys of a block, and positions up to which one program per head appends a prompt and attends to it
BLOCK_BYTES = 8192  # bytes of a block of keys, and of a block of values
TILES = (16, 64)  # queries of a tile: the smallest that holds a whole span, otherwise the largest
WIDE = 128  # queries of a tile of the kernel in `tile.hopper`
LONG = 512  # new positions of a span from which that kernel takes it: shorter ones were not measured
SORTED = 8192  # most rows whose tiles are sorted: keys and values of GPT-2 then fill half of an H100's L2


@dataclass(frozen=True)
class Queues:
    """A queue is the tiles of WIDE that a program computes one after the other. count: the most queues. causal: a query
    attends to no later position, else to all."""

    count: int
    causal: bool


@dataclass(frozen=True, eq=False)
class Spans:
    """Checked spans: int64 (n, COLUMNS), inside `slots` slots of `length` positions and `rows` rows."""

    array: np.ndarray
    slots: int
    length: int
    rows: int


@dataclass(frozen=True, eq=False)
class DeviceSpans(Spans):
    """Spans for a GPU. block: keys of a block. A table is computed and copied to `device` at its first use."""

    block: int
    device: Any
    tables: dict = field(default_factory=dict)

    def table(self, name: str, make) -> list[tuple[int, int, Any]]:
        """make() -> [(size, longest sequence, int array (n, columns))], with each array as an int32 tensor."""
        if name not in self.tables:
            self.tables[name] = [(key, longest, uploaded(x, self.device)) for key, longest, x in make() if len(x)]
        return self.tables[name]

    @property
    def fresh(self) -> bool:
        """True if position 0 of every sequence is among the rows."""
        return not self.array[:, SPAN.first].any()

    @property
    def whole(self) -> np.ndarray:
        """bool (n,): True for whole prompts of at most a block."""
        return (self.array[:, SPAN.first] == 0) & (self.array[:, SPAN.length] <= self.block)

    @property
    def all_pieces(self):
        """Pieces of all new positions and of all copied prefixes."""
        return self.table("all pieces", lambda: [(PIECE, 0, pieces(self.array))])

    @property
    def other_pieces(self):
        """`all_pieces` without the rows of whole prompts."""
        return self.table("other pieces", lambda: [(PIECE, 0, pieces(self.array, self.whole))])

    def all_tiles(self, queues: Queues | None = None):
        """Tiles of all queries, by the size of a tile. queues: as for `in_tiles`."""
        return self.table(f"all tiles, {queues}", lambda: in_tiles(self.array, queues))

    def other_tiles(self, queues: Queues | None = None):
        """`all_tiles` without whole prompts."""
        return self.table(f"other tiles, {queues}", lambda: in_tiles(self.array[~self.whole], queues))

    @property
    def whole_tiles(self):
        """One tile per whole prompt."""
        return self.table("whole tiles", lambda: by_size(self.array[self.whole], (16, 32, BLOCK)))

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
    """One new position per row: int32 tensors slots (n,), -1 for a row of no sequence, and positions (n,). longest: an
    upper bound of positions + 1."""

    slots: Any
    positions: Any
    longest: int

    def tiles(self, size: int):
        """int32 (n, 5): one tile per row, of count 0 for slot -1. A tile of any size holds its one query."""
        import torch

        count, rows = self.slots.ge(0).int(), torch.arange(len(self.slots), device=self.slots.device).int()
        return torch.stack([self.slots, self.positions, count, rows, self.positions + 1], dim=1)

    def pieces(self):
        """int32 (n, 4): one piece per row, of count 0 for slot -1."""
        return self.tiles(1)[:, :4].contiguous()


def checked_spans(spans, cache: Cache, rows: int) -> Spans:
    """Spans for every cache of these sizes. A model of many layers checks them, and copies them to a GPU, only once.

    spans: n entries of `span`, int64 (n, 5), or Spans. Sources may be slots that earlier spans of the same call fill,
    in chains too. Raises UsageError if a span leaves the rows or the cache; on a GPU also if two spans have one
    slot, if one copies more positions than its source has, or if a later one writes where it copies from.
    """
    slots, length = cache.slots, cache.length
    if isinstance(spans, Spans):
        if (spans.slots, spans.length) != (slots, length) or spans.rows > rows:
            raise UsageError(f"attention: spans were checked for {spans.slots} slots of {spans.length} positions and "
                             f"{spans.rows} rows; there are {slots}, {length} and {rows}")  # fmt: skip
        return spans
    array = np.ascontiguousarray(spans, np.int64).reshape(-1, COLUMNS)
    slot, first, count, row, source = array.T
    for name, low, high, limit in (
        ("slot", slot, slot, slots - 1), ("source", source + 1, source, slots - 1),
        ("position", first, first, length), ("count", count, count, MOST_ROWS), ("row", row, row, rows),
        ("position", first, first + count, length), ("row", row, row + count, rows),
    ):  # fmt: skip
        outside = (low < 0) | (high > limit)
        if outside.any():
            i = int(np.argmax(outside))
            raise UsageError(f"attention: span {i} is {array[i].tolist()}: its {name} is outside 0 to {limit}")
    if not isinstance(cache, DeviceCache):
        return Spans(array, slots, length, rows)
    if np.bincount(slot, minlength=1).max() > 1:
        raise UsageError(
            f"attention: two spans use slot {np.bincount(slot).argmax()}; one span per slot is allowed in a call"
        )
    return DeviceSpans(array, slots, length, rows, block_of(cache), cache.keys.device)


def uploaded(array: np.ndarray, device):
    """An int32 tensor on the device, by a copy that is queued."""
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(array, np.int32))
    return tensor.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else tensor


def block_of(cache: Cache) -> int:
    """Keys of a block: up to BLOCK, by the bytes of a row. It decides the bits, so D and dtype alone decide it."""
    row = (1 << (cache.D - 1).bit_length()) * cache.keys.itemsize
    return max(LEAST, min(BLOCK, BLOCK_BYTES // row))


def cut(starts: np.ndarray, counts: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ranges cut into parts of up to `size`: (range of each part, first, count)."""
    parts = -(-counts // size)
    which = np.repeat(np.arange(len(counts)), parts)
    offset = size * (np.arange(len(which)) - np.repeat(np.cumsum(parts) - parts, parts))
    return which, starts[which] + offset, np.minimum(counts[which] - offset, size)


def by_size(spans: np.ndarray, sizes: tuple[int, ...]) -> list[tuple[int, int, np.ndarray]]:
    """[(size, longest sequence, tiles int64 (n, 5))]: each span in the smallest size that holds it, otherwise the
    largest.

    The last queries of a sequence are first: in causal attention they attend to most keys. With few rows, the last
    queries of all sequences are first, so that the last programs are short ones. With many, a sequence's tiles stay
    together and find its keys in L2.
    """
    found = []
    choice = np.minimum(np.searchsorted(sizes, spans[:, SPAN.length]), len(sizes) - 1)
    for i, size in enumerate(sizes):
        mine = spans[choice == i]
        ends = mine[:, SPAN.first] + mine[:, SPAN.length]
        which, first, count = cut(mine[:, SPAN.first], mine[:, SPAN.length], size)
        row = mine[which, SPAN.row] + first - mine[which, SPAN.first]
        tiles = np.stack([mine[which, SPAN.slot], first, count, row, ends[which]], axis=1)
        few = count.sum() <= SORTED
        order = np.argsort(-first - count, kind="stable") if few else slice(None, None, -1)
        found.append((size, int(ends.max(initial=0)), tiles[order]))
    return found


def in_tiles(spans: np.ndarray, queues: Queues | None = None) -> list[tuple[int, int, np.ndarray]]:
    """`by_size` with TILES. queues: if given, spans of LONG and more positions have tiles of WIDE, `in_queues`."""
    if queues is None:
        return by_size(spans, TILES)
    long = spans[:, SPAN.length] >= LONG
    ((_, longest, tiles),) = by_size(spans[long], (WIDE,))
    return [*by_size(spans[~long], TILES), (WIDE, longest, in_queues(tiles, queues))]


def in_queues(tiles: np.ndarray, queues: Queues) -> np.ndarray:
    """Tiles int64 (n, 5) in up to queues.count queues -> (turns * count, 5): row t * count + i is tile t of queue i.

    In each turn the tile with most keys joins the queue with fewest so far. Tiles without queries make all queues
    equally long; they are in the last turn only.
    """
    count = min(queues.count, len(tiles))
    turns = -(-len(tiles) // count) if count else 0
    keys = tiles[:, 1] + tiles[:, 2] if queues.causal else tiles[:, 4]
    found, queued = np.zeros((turns, count, 5), np.int64), np.zeros(count, np.int64)
    for turn in range(turns):
        first = turn * count
        new = first + np.argsort(-keys[first : first + count], kind="stable")
        fewest = np.argsort(queued, kind="stable")[: len(new)]
        found[turn, fewest] = tiles[new]
        queued[fewest] += keys[new]
    return found.reshape(-1, 5)


def pieces(spans: np.ndarray, without: np.ndarray | None = None) -> np.ndarray:
    """int64 (n, 4): pieces of the spans' rows and of the prefixes that they copy. without: bool (n,), True for spans
    whose rows are left out."""
    rows = spans if without is None else spans[~without]
    segments = np.concatenate([rows[:, [SPAN.slot, SPAN.first, SPAN.length, SPAN.row]], copied(spans)])
    which, first, count = cut(segments[:, 1], segments[:, 2], PIECE)
    slot, start, _, row = segments[which].T
    return np.stack([slot, first, count, np.where(row < 0, row, row + first - start)], axis=1)


def copied(spans: np.ndarray) -> np.ndarray:
    """int64 (n, 4): segments (slot, first, count, row) of the prefixes that spans copy; a row below 0 is -1 - slot.

    A span copies from the last span before it in that slot, or else from the slot before the call. Along its chain of
    sources, the first span that starts before position p owns p. Raises UsageError if a source has too few positions or
    is written later.
    """
    n, (slot, first, _, row, source) = len(spans), spans.T
    copies = np.flatnonzero((source >= 0) & (first > 0))
    if not len(copies):
        return np.zeros((0, 4), np.int64)
    parent = _parents(spans, copies)
    root = np.where(parent < 0, np.arange(n), parent)  # root of each chain; pointers are doubled until they are stable
    while (root[root] != root).any():
        root = root[root]
    origin = np.where(source[root] >= 0, source[root], slot[root])  # the slot with the positions that no span owns
    while True:  # skip sources that start at the same position or later: they own none of the prefix
        skip = (parent >= 0) & (first[parent] >= first)
        if not skip.any():
            break
        parent[skip] = parent[parent[skip]]
    found, high, owner = [], first[copies], parent[copies]
    while len(copies):
        low = np.where(owner < 0, 0, first[owner])
        origin_row = np.where(owner < 0, -1 - origin[copies], row[owner])
        found.append(np.stack([slot[copies], low, high - low, origin_row], axis=1))
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
            what = f"it copies {first[i]} positions of slot {source[i]}, {why}"
            raise UsageError(f"attention: span {i} is {spans[i].tolist()}: {what}")
    return parent
