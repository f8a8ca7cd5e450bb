"""The CPU backend: arrays are NumPy's, and a network is called on slices of the caller's arrays."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import numpy as np
from numpy.typing import DTypeLike

from tilewright.backends.protocol import Array, Arrays, Network, Span, Spans, Step, unmeasured
from tilewright.ops.core.arrays import BFLOAT16
from tilewright.ops.core.memory import empty
from tilewright.switches import Without, switched_off

T = TypeVar("T")


def _dtype(name: str) -> np.dtype:
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


class Workspace(threading.local):
    """Buffers, separate for each thread. They are reused, because the page faults of new memory take longer than the
    writes."""

    def __init__(self, elements: dict[str, int]) -> None:
        self.elements = elements
        self.buffers: dict[str, np.ndarray] = {}

    def take(self, name: str, rows: int, columns: int, dtype: str = "float32") -> np.ndarray:
        """See `protocol.Workspace`."""
        kind = _dtype(dtype)
        size = rows * columns * kind.itemsize
        if name not in self.buffers or self.buffers[name].size < size:
            self.buffers[name] = empty(max(size, self.elements.get(name, 0) * kind.itemsize), np.uint8)
        return self.buffers[name][:size].view(kind).reshape(rows, columns)


class Batches:
    """A network on the CPU, see `protocol.Batches`. Threads may call it at the same time."""

    def __init__(self, network: Network, largest: int) -> None:
        self.network, self.largest = network, largest
        self.idle: list[Workspace] = []  # results of streams that have ended

    def run(self, inputs: Arrays, outputs: Arrays, spans: Spans | None = None) -> None:
        """See `protocol.Batches`."""
        with self.network.held():
            for first, end in spans or [(0, len(inputs[0]))]:
                for start in range(first, end, self.largest):
                    rows = slice(start, min(start + self.largest, end))
                    self.network.forward(*(array[rows] for array in (*inputs, *outputs)))

    def stream(self, batches: Iterable[Arrays], span: Span = unmeasured) -> Iterator[Arrays]:
        """See `protocol.Batches`. The batches are computed one after another. Each of several streams at once has its
        own results."""
        try:
            work = self.idle.pop()
        except IndexError:
            work = Workspace({})
        try:
            with self.network.held():
                for inputs in batches:
                    n, outputs = len(inputs[0]), []
                    for i, (shape, dtype) in enumerate(self.network.outputs):
                        outputs.append(work.take(str(i), n, math.prod(shape), dtype).reshape(n, *shape))
                    self.run(inputs, outputs)
                    yield outputs
        finally:
            self.idle.append(work)

    def attempt(self, work: Callable[[], T]) -> T:
        """Call work() once."""
        return work()


class Pipeline:
    """Runs steps one after another."""

    def queue(self, step: Step, slot: int = 0) -> None:
        """Copy in, compute and copy out at once."""
        for host, array in step.uploads:
            np.asarray(array)[...] = host
        step.compute()
        for array, host in step.downloads:
            host[...] = np.asarray(array)

    def wait(self) -> None:
        """Return at once, because every step is done."""


class Cpu:
    """The CPU, see `protocol.Backend`."""

    name = device = "cpu"
    between = "float32"  # the only dtype that kernels of convolutions write on a CPU

    def __init__(self, without: Without = frozenset()) -> None:
        self.without = switched_off(without)

    def array(self, values: np.ndarray) -> np.ndarray:
        """The values unchanged. Memory-mapped weights stay mapped until they are prepared."""
        return values

    def vector(self, values: np.ndarray) -> np.ndarray:
        """A float32 copy."""
        return np.array(values, np.float32)

    def empty(self, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """A new array that starts at a cache line, contents undefined."""
        return empty(shape, _dtype(dtype))

    def host(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> np.ndarray:
        """A new array that starts at a cache line, contents undefined."""
        return empty(shape, dtype)

    def upload(self, values: np.ndarray) -> np.ndarray:
        """The values themselves."""
        return values

    def workspace(self, **elements: int) -> Workspace:
        """Named buffers, separate for each thread."""
        return Workspace(elements)

    def padded(self, columns: int) -> int:
        """The same number of columns."""
        return columns

    def numpy(self, values: Array) -> np.ndarray:
        """The values unchanged."""
        return np.asarray(values)

    def fetch(self, values: Array) -> Callable[[], np.ndarray]:
        """The values themselves."""
        return lambda: np.asarray(values)

    def batches(self, network: Network, sizes: Sequence[int], slots: int = 1) -> Batches:
        """The network in batches of the largest size."""
        return Batches(network, max(sizes))

    def pipeline(self, slots: int) -> Pipeline:
        """A pipeline that runs steps one after another."""
        return Pipeline()

    def halving(self, run: Callable[[int], T], batch: int) -> T:
        """Call run(batch)."""
        return run(batch)

    def enough_memory(self, what: str, remedy: str) -> AbstractContextManager[None]:
        """A block without an effect."""
        return nullcontext()
