"""What attention keeps and is handed: the cache of keys and values, and the spans of queries that look into it."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import UsageError
from tilewright.hardware import cpu
from tilewright.ops.core.gpu.tensors import kind, torch_dtype
from tilewright.ops.core.memory import empty


class Span(NamedTuple):
    """Columns of an array of spans (n, 5).

    slot: of the sequence in the cache. first: position of its first new row. length: number of new rows. row: index of
    the first of them in the batch. source: slot whose first positions are copied; below 0: none.
    """

    slot: int
    first: int
    length: int
    row: int
    source: int


SPAN = Span(*range(5))
COLUMNS = len(SPAN)
MOST_ROWS = 2**31  # of a span: its sums stay integers of 64 bits
PANEL_VECTORS = 2  # vectors of keys that a register block scores at once


@dataclass(frozen=True, eq=False)
class Cache:
    """Keys and values of one layer for a number of sequences, in the order in which the kernels read them.

    keys (slots, heads, panels, D, PANEL): PANEL keys side by side, so that scores are computed PANEL at a time without
    a sum across lanes. values (slots, heads, length, width): plain rows, width is D rounded up to whole vectors.
    Both are float32, or uint32 words of two bfloat16, as matrix instructions want them: then a word of keys holds the
    numbers 2 d and 2 d + 1 of a key, and one of values those of positions 2 t and 2 t + 1, so that these axes are half
    as long. length: positions that a slot has room for. What was never written has no influence.
    """

    keys: Any
    values: Any
    D: int
    length: int

    @classmethod
    def empty(cls, slots: int, heads: int, length: int, D: int, dtype: str = "float32", device: str = "cpu") -> "Cache":
        """Room for `slots` sequences of up to `length` positions, heads of D numbers; memory is taken when written.

        device: "cuda" for a DeviceCache.
        """
        if device != "cpu":
            return DeviceCache.on(device, slots, heads, length, D, dtype)
        keys, values = ((slots, heads, *shape) for shape in shapes_of(length, D, dtype))
        return cls(empty(keys, element(dtype)), empty(values, element(dtype)), D, length)

    @property
    def heads(self) -> int:
        return self.keys.shape[1]

    @property
    def dtype(self) -> str:
        return "float32" if self.keys.dtype == np.float32 else "bfloat16"

    def plain(self, slot: int, head: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """float32 (length, D) keys and values of one head, copied."""
        keys = self.keys[slot, head, : panels_of(length)].swapaxes(1, 2)  # (panels, PANEL, D or its half)
        values = self.values[slot, head]
        if self.dtype != "float32":
            keys, values = _numbers(keys), _numbers(values.swapaxes(0, 1)).swapaxes(0, 1)
        keys = keys.reshape(-1, keys.shape[2])
        return np.ascontiguousarray(keys[:length, : self.D]), np.ascontiguousarray(values[:length, : self.D])


@dataclass(frozen=True, eq=False)
class DeviceCache(Cache):
    """The same in torch tensors: keys and values (slots, heads, length, D), float32, bfloat16 or float16."""

    @classmethod
    def on(cls, device, slots: int, heads: int, length: int, D: int, dtype: str = "float32") -> "DeviceCache":
        """Room on a device; there memory is taken at once."""
        import torch

        shape = (slots, heads, length, D)
        keys, values = (torch.empty(shape, dtype=torch_dtype(dtype), device=device) for _ in range(2))
        return cls(keys, values, D, length)

    @property
    def dtype(self) -> str:
        return kind(self.keys)

    def plain(self, slot: int, head: int, length: int) -> tuple[Any, Any]:
        """float32 (length, D) keys and values of one head, copied."""
        return self.keys[slot, head, :length].float(), self.values[slot, head, :length].float()


def element(dtype: str) -> type:
    """How a cache of this accuracy class is stored."""
    return np.float32 if dtype == "float32" else np.uint32


def panel() -> int:
    """Keys in a panel on this machine."""
    return PANEL_VECTORS * cpu().lanes


def panels_of(length: int) -> int:
    """Panels for that many keys."""
    return -(-length // panel())


def width_of(D: int) -> int:
    """Numbers in a row of values: whole vectors."""
    return -(-D // cpu().lanes) * cpu().lanes


def shapes_of(length: int, D: int, dtype: str) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Of the keys and of the values of one head."""
    numbers = 1 if dtype == "float32" else 2  # in an element
    return (panels_of(length), -(-D // numbers), panel()), (-(-length // numbers), width_of(D))


def bytes_a_sequence(heads: int, length: int, D: int, dtype: str, device: str = "cpu") -> int:
    """Bytes that a slot of one layer takes."""
    if device != "cpu":
        return 2 * heads * length * D * (4 if dtype == "float32" else 2)
    keys, values = map(math.prod, shapes_of(length, D, dtype))
    return heads * (keys + values) * np.dtype(element(dtype)).itemsize


def span(slot: int, first: int, count: int, row: int, source: int = -1) -> tuple[int, int, int, int, int]:
    """Queries of one sequence: `count` rows from `row` of the batch are its positions from `first` on, in `slot`.

    source: a slot whose first `first` positions are this sequence's too and are copied by `append`; -1: they are there.
    """
    return slot, first, count, row, source


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans that were checked: int64 (n, COLUMNS), inside `slots` slots of `length` positions and `rows` rows."""

    array: np.ndarray
    slots: int
    length: int
    rows: int


def checked_spans(spans, cache: Cache, rows: int) -> Spans:
    """Spans for every cache of these sizes, so that a model of many layers has them checked once.

    spans: n entries of `span`, or Spans. Raises UsageError if one leaves the rows or the cache.
    """
    slots, length = cache.keys.shape[0], cache.length
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
            at = int(np.argmax(outside))
            raise UsageError(f"attention: span {at} is {array[at].tolist()}: its {name} leaves 0 to {limit}")
    return Spans(array, slots, length, rows)


@dataclass(frozen=True, eq=False)
class Look:
    """How queries look at keys: the factor of the scores, and whether a position sees only itself and those before.

    new: keys and values (rows, heads * D) of q's dtype, rows as far apart as q's, which the spans keep first.
    """

    scale: float
    causal: bool
    new: tuple[np.ndarray, np.ndarray] | None = None


def _numbers(words: np.ndarray) -> np.ndarray:
    """float32 (..., 2 n) of the pairs in uint32 (..., n)."""
    pairs = np.stack([words << np.uint32(16), words & np.uint32(0xFFFF0000)], axis=-1)
    return pairs.reshape(*words.shape[:-1], -1).view(np.float32)
