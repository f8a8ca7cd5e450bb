"""Operands of attention: the cache of keys and values, spans of queries, and options."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import UsageError
from tilewright.hardware import cpu
from tilewright.ops.core.arrays import BFLOAT16, as_numpy
from tilewright.ops.core.gpu.tensors import FLOATS, kind, on_gpu, same_device, tensor_of, torch_dtype
from tilewright.ops.core.memory import empty


class Span(NamedTuple):
    """Columns of an array of spans (n, 5).

    slot: of the sequence in the cache. first: position of its first new row. length: number of new rows. row: index of
    its first new row in the batch. source: slot whose first positions are copied; below 0: none.
    """

    slot: int
    first: int
    length: int
    row: int
    source: int


SPAN = Span(*range(5))
COLUMNS = len(SPAN)
MOST_ROWS = 2**31  # limit of a span, so that sums of its columns fit into 64 bits
PANEL_VECTORS = 2  # vectors of keys that a register block scores at once


@dataclass(frozen=True, eq=False)
class Cache:
    """Keys and values of one layer for a number of sequences, in the order in which the kernels read them.

    keys (slots, heads, panels, D, PANEL): PANEL keys side by side, so that PANEL scores are computed at a time without
    a sum across lanes. values (slots, heads, length, width): plain rows, width is D rounded up to whole vectors.
    Both are float32, or uint32 words of two bfloat16, the layout of matrix instructions. A word of keys holds
    elements 2 d and 2 d + 1 of a key, a word of values an element of positions 2 t and 2 t + 1. D, length are halved.
    length: capacity of a slot in positions. Positions that were never written have no influence.
    """

    keys: Any
    values: Any
    D: int
    length: int

    @classmethod
    def empty(cls, slots: int, heads: int, length: int, D: int, dtype: str = "float32", device: Any = "cpu") -> "Cache":
        """A cache for `slots` sequences of up to `length` positions, heads of D elements. The first write to a page
        allocates it. device: "cuda" for a DeviceCache."""
        if device != "cpu":
            return DeviceCache.on(device, slots, heads, length, D, dtype)
        keys, values = ((slots, heads, *shape) for shape in shapes_of(length, D, dtype))
        return cls(empty(keys, element(dtype)), empty(values, element(dtype)), D, length)

    @property
    def slots(self) -> int:
        return self.keys.shape[0]

    @property
    def heads(self) -> int:
        return self.keys.shape[1]

    @property
    def dtype(self) -> str:
        return "float32" if self.keys.dtype == np.float32 else "bfloat16"

    @cached_property
    def row_dtypes(self) -> tuple[Any, ...]:
        """The dtypes that rows of queries, keys and values may have, as the arrays' library has them."""
        return (np.dtype(np.float32),) if self.dtype == "float32" else (np.dtype(np.float32), BFLOAT16)

    def take(self, name: str, rows: Any) -> Any:
        """Rows as a NumPy array, not converted. Raises UsageError for rows on a GPU."""
        if isinstance(rows, np.ndarray):  # the common case, a microsecond faster
            return rows
        if on_gpu(rows):
            raise UsageError(f"attention: {name} is on a GPU and the cache on the CPU: move them to one device")
        return as_numpy(f"attention: {name}", rows)

    def plain(self, slot: int, head: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """float32 (length, D) keys and values of one head, copied."""
        keys = self.keys[slot, head, : panels_of(length)].swapaxes(1, 2)  # (panels, PANEL, D or its half)
        values = self.values[slot, head]
        if self.dtype != "float32":
            keys, values = _widened(keys), _widened(values.swapaxes(0, 1)).swapaxes(0, 1)
        keys = keys.reshape(-1, keys.shape[2])
        return np.ascontiguousarray(keys[:length, : self.D]), np.ascontiguousarray(values[:length, : self.D])


@dataclass(frozen=True, eq=False)
class DeviceCache(Cache):
    """The same in torch tensors: keys and values (slots, heads, length, D), float32, bfloat16 or float16."""

    @classmethod
    def on(cls, device, slots: int, heads: int, length: int, D: int, dtype: str = "float32") -> "DeviceCache":
        """A cache on a device, where all memory is allocated at once."""
        import torch

        shape = (slots, heads, length, D)
        keys, values = (torch.empty(shape, dtype=torch_dtype(dtype), device=device) for _ in range(2))
        return cls(keys, values, D, length)

    @property
    def dtype(self) -> str:
        return kind(self.keys)

    @cached_property
    def row_dtypes(self) -> tuple[Any, ...]:
        return tuple(map(torch_dtype, FLOATS))

    def take(self, name: str, rows: Any) -> Any:
        """Rows as a tensor. Raises UsageError unless they are floats on the cache's device."""
        tensor = tensor_of("attention", name, rows)
        same_device("attention", "cache", self.keys, **{name: tensor})
        return tensor

    def plain(self, slot: int, head: int, length: int) -> tuple[Any, Any]:
        """float32 (length, D) keys and values of one head, copied."""
        return self.keys[slot, head, :length].float(), self.values[slot, head, :length].float()


def element(dtype: str) -> type:
    """The NumPy dtype in which the CPU stores a cache of this accuracy class."""
    return np.float32 if dtype == "float32" else np.uint32


def panel() -> int:
    """Keys in a panel on this machine."""
    return PANEL_VECTORS * cpu().lanes


def panels_of(length: int) -> int:
    """Panels that hold `length` keys."""
    return -(-length // panel())


def width_of(D: int) -> int:
    """Elements of a row of values: whole vectors."""
    return -(-D // cpu().lanes) * cpu().lanes


def shapes_of(length: int, D: int, dtype: str) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Shapes of the keys and of the values of one head, in words."""
    per_word = 1 if dtype == "float32" else 2
    return (panels_of(length), -(-D // per_word), panel()), (-(-length // per_word), width_of(D))


def bytes_a_sequence(heads: int, length: int, D: int, dtype: str, device: str = "cpu") -> int:
    """Bytes of one slot of one layer's cache."""
    if device != "cpu":
        return 2 * heads * length * D * (4 if dtype == "float32" else 2)
    keys, values = map(math.prod, shapes_of(length, D, dtype))
    return heads * (keys + values) * np.dtype(element(dtype)).itemsize


def span(slot: int, first: int, count: int, row: int, source: int = -1) -> tuple[int, int, int, int, int]:
    """Rows of one sequence: `count` rows of the batch, from `row` on, are its positions from `first` on, in `slot`.

    source: a slot that has the same first `first` positions, from which `append` copies them; -1: nothing is copied.
    """
    return slot, first, count, row, source


@dataclass(frozen=True, eq=False)
class AttendOptions:
    """scale: factor of the scores. causal: a position attends to itself and to earlier positions only. new: keys and
    values (rows, heads * D), which the spans append first; on the CPU they have q's dtype and row stride. keep: False
    if nobody reads them from the cache after the call, so that a rung need not write them."""

    scale: float
    causal: bool
    new: tuple[Any, Any] | None = None
    keep: bool = True


def _widened(words: np.ndarray) -> np.ndarray:
    """float32 (..., 2 n) of the bfloat16 pairs in uint32 (..., n)."""
    pairs = np.stack([words << np.uint32(16), words & np.uint32(0xFFFF0000)], axis=-1)
    return pairs.reshape(*words.shape[:-1], -1).view(np.float32)
