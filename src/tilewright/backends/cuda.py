"""The CUDA backend: torch tensors, batches in a pipeline, and CUDA graphs.

In tests torch's device may be "cpu". Kernels then run as Python code, without graphs or streams.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike

from tilewright.backends.cuda_graph import Pool, Repeated
from tilewright.backends.cuda_pipeline import Pipeline
from tilewright.backends.memory import halving
from tilewright.backends.protocol import (
    Array,
    Arrays,
    Network,
    Operand,
    Span,
    Spans,
    Step,
    finished,
    unmeasured,
)
from tilewright.errors import ResourceError, UsageError
from tilewright.ops.core.gpu.tensors import torch_dtype
from tilewright.ops.matmul.problem import DEVICE_DTYPES
from tilewright.switches import Without, switched_off

T = TypeVar("T")
Tensors = list[torch.Tensor]
FULL = 1024  # from so many records on a batch is filled; fewer are run in the smallest batch that holds them
ROW = 8  # columns of an input are padded to a multiple of this: 16 bytes in a 16-bit dtype


class Workspace:
    """Buffers on the device. Each (rows, columns) view is made once. grown: how often a buffer was replaced by a larger
    one."""

    def __init__(self, device: str, elements: dict[str, int]) -> None:
        self.device, self.elements = device, elements
        self.buffers: dict[str, torch.Tensor] = {}
        self.views: dict[tuple[str, int, int, str], torch.Tensor] = {}
        self.grown = 0

    def take(self, name: str, rows: int, columns: int, dtype: str = "float32") -> torch.Tensor:
        """See `protocol.Workspace`."""
        key = name, rows, columns, dtype
        if key not in self.views:
            kind = getattr(torch, dtype)
            size = rows * columns * kind.itemsize
            if name not in self.buffers or len(self.buffers[name]) < size:
                self.views.clear()
                self.grown += 1
                self.buffers.pop(name, None)  # free its memory before the larger one is allocated
                size_now = max(size, self.elements.get(name, 0) * kind.itemsize)
                self.buffers[name] = torch.empty(size_now, dtype=torch.uint8, device=self.device)
            self.views[key] = self.buffers[name][:size].view(kind).view(rows, columns)
        return self.views[key]


class Slot(NamedTuple):
    """A batch's tensors on the device, and the launch of the network on them. The tensors are never moved, because a
    CUDA graph needs the same addresses again."""

    inputs: Tensors
    outputs: Tensors
    launch: Callable[[], object]


class Streaming(NamedTuple):
    """The memory of one stream of `Batches.stream`: pinned (inputs, outputs) of each slot."""

    pipeline: Pipeline
    hosts: list[tuple[list[np.ndarray], list[np.ndarray]]]


class Batches:
    """A network as CUDA graphs for batches of a few sizes, see `protocol.Batches`.

    slots: by size, ascending. `run` uses the first slot of each size, and fills batches as long as FULL records are
    left; `stream` uses all slots of the largest.
    """

    def __init__(self, backend: Cuda, network: Network, sizes: Sequence[int], slots: int) -> None:
        self.backend, self.network, self.count = backend, network, slots
        self.lock, self.pipeline = threading.RLock(), Pipeline(backend.device, overlap=backend.overlaps)
        self.last = self.pipeline  # the one whose steps may be in flight
        self.idle: list[Streaming] = []  # of streams that have ended
        self.slots: dict[int, list[Slot]] = {}
        for size in sizes:
            try:
                self.slots[size] = self._slots(size)
            except torch.cuda.OutOfMemoryError:
                if not self.slots:
                    raise
                break

    def _slots(self, size: int) -> list[Slot]:
        """The slots of a size. They share the memory of their graphs, which is free again when all of them are
        deleted."""
        found = []
        pool = None if self.backend.device == "cpu" else torch.cuda.graph_pool_handle()
        for _ in range(self.count):
            inputs, outputs = self._tensors(self.network.inputs, size), self._tensors(self.network.outputs, size)
            launch = self.backend.graph(partial(self.network.forward, *inputs, *outputs), pool)
            found.append(Slot(inputs, outputs, partial(self.network.launch, launch)))
        return found

    def _tensors(self, operands: Sequence[Operand], size: int) -> Tensors:
        return [
            torch.zeros((size, *shape), dtype=getattr(torch, dtype), device=self.backend.device)
            for shape, dtype in operands
        ]

    @property
    def largest(self) -> int:
        """The number of records of the largest batch."""
        return max(self.slots)

    def _queue(self, pipeline: Pipeline, step: Step, span: Span = unmeasured) -> torch.cuda.Event | None:
        """Queue a step. All pipelines use the same slots, so steps of another one are awaited first."""
        with self.lock:
            if self.last is not pipeline:
                self.last.wait()
                self.last = pipeline
            return pipeline.queue(step, span=span)

    def run(self, inputs: Arrays, outputs: Arrays, spans: Spans | None = None) -> None:
        """See `protocol.Batches`. The host copies a batch's inputs to pinned memory, and queues it. Calls of several
        threads run one after another, because they use the same slots."""
        n = len(inputs[0])
        sent = self._hosts(self.network.inputs, n)
        with self.lock, self.network.held(), finished(self.pipeline):
            for first, end in spans or [(0, n)]:
                for start, size, count in pieces(first, end, list(self.slots)):
                    rows, slot = slice(start, start + count), self.slots[size][0]
                    for host, values in zip(sent, inputs, strict=True):
                        _fill(host[rows], values[rows])
                    uploads = [(host[rows], x[:count]) for host, x in zip(sent, slot.inputs, strict=True)]
                    downloads = [(x[:count], host[rows]) for x, host in zip(slot.outputs, outputs, strict=True)]
                    self._queue(self.pipeline, Step(uploads, slot.launch, downloads))

    def stream(self, batches: Iterable[Arrays], span: Span = unmeasured) -> Iterator[Arrays]:
        """See `protocol.Batches`. A batch's outputs are copied out and read while the next batch is computed. Each of
        several streams at once has its own host buffers."""
        try:
            streaming = self.idle.pop()
        except IndexError:
            streaming = self._streaming()
        try:
            with self.network.held(), finished(streaming.pipeline):
                yield from self._streamed(streaming, batches, span)
        finally:
            self.idle.append(streaming)

    def _streaming(self) -> Streaming:
        network, size = self.network, self.largest
        hosts = [(self._hosts(network.inputs, size), self._hosts(network.outputs, size)) for _ in self.slots[size]]
        return Streaming(Pipeline(self.backend.device, downloads=True, overlap=self.backend.overlaps), hosts)

    def _streamed(self, streaming: Streaming, batches: Iterable[Arrays], span: Span) -> Iterator[Arrays]:
        slots, waiting = self.slots[self.largest], None
        for number, inputs in enumerate(batches):
            at, n = number % len(slots), len(inputs[0])
            slot, (sent, found) = slots[at], streaming.hosts[at]
            for host, values in zip(sent, inputs, strict=True):
                _fill(host[:n], values)
            uploads = [(host[:n], x[:n]) for host, x in zip(sent, slot.inputs, strict=True)]
            arrays = [host[:n] for host in found]
            downloads = [(x[:n], host) for x, host in zip(slot.outputs, arrays, strict=True)]
            copied = self._queue(streaming.pipeline, Step(uploads, slot.launch, downloads), span)
            if waiting is not None:
                yield _arrived(*waiting)
            waiting = arrays, copied
        if waiting is not None:
            yield _arrived(*waiting)

    def _hosts(self, operands: Sequence[Operand], n: int) -> list[np.ndarray]:
        return [self.backend.host((n, *shape), dtype) for shape, dtype in operands]

    def attempt(self, work: Callable[[], T]) -> T:
        """See `protocol.Batches`."""
        with self.lock:
            while True:
                try:
                    return work()
                except torch.cuda.OutOfMemoryError:
                    if len(self.slots) == 1:
                        raise
                del self.slots[self.largest]
                torch.cuda.empty_cache()


def _arrived(outputs: Arrays, copied: torch.cuda.Event | None) -> Arrays:
    if copied is not None:
        copied.synchronize()
    return outputs


def _fill(target: np.ndarray, values: np.ndarray) -> None:
    """Copy rows. If the target has more columns than the values, the others become zero."""
    if target.shape == values.shape:
        target[...] = values
        return
    columns = values.shape[1]
    target[:, :columns], target[:, columns:] = values, 0


def pieces(first: int, end: int, sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(start, batch size, records): full batches while FULL or more records are left, then one that holds the rest."""
    while first < end:
        rest = end - first
        full = [size for size in sizes if FULL <= size <= rest]
        size = max(full) if full else min((size for size in sizes if size >= rest), default=max(sizes))
        yield first, size, min(size, rest)
        first += size


class Cuda:
    """A GPU, see `protocol.Backend`. dtype: accuracy class. In a 16-bit class activations have its dtype.

    without: what is switched off. pins: host buffers are pinned. overlaps: copies overlap with kernels, and the host
    works meanwhile. captures: kernels are captured as CUDA graphs.
    """

    name = "cuda"

    def __init__(self, dtype: str, device: str = "cuda", without: Without = frozenset()) -> None:
        if dtype not in DEVICE_DTYPES:
            raise UsageError(f"dtype is {dtype!r}; on a GPU it must be one of {', '.join(DEVICE_DTYPES)}")
        self.device, self.without = device, switched_off(without)
        self.pins = device != "cpu" and "pinned" not in self.without
        self.overlaps = "overlap" not in self.without
        self.captures = device != "cpu" and "graphs" not in self.without
        self.between = str(torch_dtype(dtype)).removeprefix("torch.")

    def array(self, values: np.ndarray) -> torch.Tensor:
        """A float32 copy on the device."""
        return torch.from_numpy(np.array(values, np.float32, order="C")).to(self.device)

    vector = array

    def empty(self, shape: tuple[int, ...], dtype: str = "float32") -> torch.Tensor:
        """A new tensor on the device, contents undefined."""
        return torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)

    def host(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> np.ndarray:
        """Pinned memory, from which and to which the GPU copies itself; pageable memory if pinning is switched off.
        Raises ResourceError if it cannot be pinned."""
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
        try:
            return torch.empty(shape, dtype=kind, pin_memory=self.pins).numpy()
        except RuntimeError as error:
            nbytes = math.prod([shape] if isinstance(shape, int) else shape) * np.dtype(dtype).itemsize
            what = (
                f"{nbytes:,} bytes of memory cannot be locked for copies to the GPU: {str(error).partition(chr(10))[0]}"
            )
            raise ResourceError(what, remedy="give less --memory, or a smaller --batch-size") from error

    def upload(self, values: np.ndarray) -> torch.Tensor:
        """A copy on the device. The host does not wait for it, unless pinned memory is switched off."""
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        if self.device == "cpu" or not self.pins:
            return tensor.to(self.device)
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        pinned.numpy()[...] = tensor.numpy()  # `pin_memory` copies with many threads, which may take 10 ms to start
        return pinned.to(self.device, non_blocking=True)

    def workspace(self, **elements: int) -> Workspace:
        """Named buffers on the device."""
        return Workspace(self.device, elements)

    def padded(self, columns: int) -> int:
        """The next multiple of ROW."""
        return -(-columns // ROW) * ROW

    def numpy(self, values: Array) -> np.ndarray:
        """A copy on the host. 16-bit values are converted to float32."""
        assert isinstance(values, torch.Tensor)
        return (values.float() if values.is_floating_point() else values).cpu().numpy()

    def fetch(self, values: Array) -> Callable[[], np.ndarray]:
        """See `protocol.Backend`. The copy is queued after what is on torch's current stream."""
        assert isinstance(values, torch.Tensor)
        found = values.float() if values.is_floating_point() else values
        if self.device == "cpu":
            return found.numpy
        host = torch.empty(found.shape, dtype=found.dtype, pin_memory=self.pins)
        host.copy_(found, non_blocking=True)
        copied = torch.cuda.current_stream().record_event()

        def wait() -> np.ndarray:
            copied.synchronize()
            return host.numpy()

        return wait

    def graph(self, call: Callable[[], object], pool: Pool | None = None) -> Callable[[], object]:
        """call() as a CUDA graph, captured now, and again if other rungs are forced later. It is call itself if graphs
        are switched off. pool: see `cuda_graph.captured`."""
        if self.device == "cpu":
            return call
        repeated = Repeated[object](pool)
        repeated.run(call)
        torch.cuda.synchronize()
        if not self.captures:
            return call
        repeated.run(call)
        return partial(repeated.run, call)

    def batches(self, network: Network, sizes: Sequence[int], slots: int = 1) -> Batches:
        """The network as CUDA graphs, captured now."""
        return Batches(self, network, sizes, slots)

    def pipeline(self, slots: int) -> Pipeline:
        """A pipeline with one stream per slot."""
        return Pipeline(self.device, streams=slots, overlap=self.overlaps)

    def halving(self, run: Callable[[int], T], batch: int) -> T:
        """See `memory.halving`."""
        return halving(run, batch)

    @contextmanager
    def enough_memory(self, what: str, remedy: str) -> Iterator[None]:
        """See `protocol.Backend`."""
        try:
            yield
        except torch.cuda.OutOfMemoryError as error:
            raise ResourceError(f"{what}: {error}", remedy=remedy) from error
