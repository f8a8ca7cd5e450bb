"""What a model needs from the device that it runs on. Models and jobs use only these types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from tilewright.errors import UsageError
from tilewright.switches import Without

T = TypeVar("T")
Arrays = Sequence[np.ndarray]  # of the host
Spans = Iterable[tuple[int, int]]  # (first, end) of records
Span = Callable[[str], AbstractContextManager[None]]  # measures under this name the work that a block queues on a GPU
COPY_IN, COMPUTE, COPY_OUT = "copy in", "compute", "copy out"  # names of spans


def unmeasured(name: str) -> AbstractContextManager[None]:
    """A span that measures nothing."""
    return nullcontext()


class Array(Protocol):
    """What NumPy arrays and torch tensors have in common."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes along the axes."""

    @property
    def T(self) -> Array:
        """The transposed matrix, without a copy."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice | tuple[slice, ...] | np.ndarray, /) -> Array: ...

    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def reshape(self, shape: tuple[int, ...], /) -> Array:
        """The same elements in another shape."""


class Operand(NamedTuple):
    """An input or an output of a network: shape and dtype of one record."""

    shape: tuple[int, ...]
    dtype: str = "float32"


class Network(NamedTuple):
    """forward(*inputs, *outputs) writes the outputs of a batch; their arrays have one row per record.

    owner: a weak reference to the model whose weights forward reads. None: the network belongs to no model.
    """

    forward: Callable[..., None]
    inputs: Sequence[Operand]
    outputs: Sequence[Operand]
    owner: Callable[[], object | None] | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the model until the end of the block. Raises UsageError if it was freed: a CUDA graph would read freed
        memory."""
        model = self.owner() if self.owner is not None else self
        if model is None:
            raise UsageError("the model of these batches was freed, and they read its weights",
                             remedy="store the model in a variable while its batches run")  # fmt: skip
        yield

    def launch(self, call: Callable[[], object]) -> None:
        """Run `call`, which runs forward or replays its CUDA graph. Raises UsageError if the model was freed."""
        with self.held():
            call()


class Step(NamedTuple):
    """One batch in a pipeline: copy (host, device) pairs in, queue the kernels, copy (device, host) pairs out."""

    uploads: Sequence[tuple[np.ndarray, Array]]
    compute: Callable[[], object]
    downloads: Sequence[tuple[Array, np.ndarray]]


class Pipeline(Protocol):
    """Steps in flight. Each step uses the memory of its slot, and slots are used in turn."""

    def queue(self, step: Step, slot: int) -> object:
        """Queue a step. Its host arrays must not change before `wait`."""

    def wait(self) -> None:
        """Return when every step is done."""


@contextmanager
def finished(pipeline: Pipeline) -> Iterator[None]:
    """A block whose steps are done at its end, also after an error: their memory must not be freed before."""
    try:
        yield
    finally:
        pipeline.wait()


class Workspace(Protocol):
    """Named buffers that are reused."""

    def take(self, name: str, rows: int, columns: int, dtype: str = "float32") -> Array:
        """(rows, columns), contents undefined. Invalidates the array that was taken under this name before."""


class Batches(Protocol):
    """A network, ready to run batches of the sizes that it was prepared for."""

    @property
    def largest(self) -> int:
        """The number of records of the largest batch."""

    def run(self, inputs: Arrays, outputs: Arrays, spans: Spans | None = None) -> None:
        """Compute outputs (n, ...) from inputs (n, ...) batch by batch, and return when they are written.

        spans: the records to compute; each span is requested when the one before is queued. None: all. On a GPU,
        outputs that `Backend.host` has allocated are copied without waiting.
        """

    def stream(self, batches: Iterable[Arrays], span: Span = unmeasured) -> Iterator[Arrays]:
        """Outputs of consecutive batches of inputs, valid until this stream's next ones are requested.

        A GPU computes the next batch meanwhile. It needs two slots, and takes at most `largest` records at a time.
        """

    def attempt(self, work: Callable[[], T]) -> T:
        """Call work(), which calls `run`. On a GPU only one thread does so at a time.

        If the GPU's memory does not suffice, the largest batch size is given up and its memory freed. Then work is
        called again. Raises torch's OutOfMemoryError when only one batch size is left.
        """


class Backend(Protocol):
    """A device: where arrays live, and how a network runs there."""

    @property
    def name(self) -> str:
        """ "cpu" or "cuda"."""

    @property
    def device(self) -> str:
        """The device as operations take it. It is "cpu" also if a GPU is simulated."""

    @property
    def without(self) -> Without:
        """The optimisations that are switched off."""

    @property
    def between(self) -> str:
        """The dtype of arrays between layers: on a GPU the 16-bit dtype of the accuracy class, otherwise float32."""

    def array(self, values: np.ndarray) -> Array:
        """Weights for an operation to prepare: unchanged on the CPU, a contiguous float32 copy on a GPU."""

    def vector(self, values: np.ndarray) -> Array:
        """A float32 copy."""

    def empty(self, shape: tuple[int, ...], dtype: str = "float32") -> Array:
        """A new array, contents undefined."""

    def host(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> np.ndarray:
        """A new array on the host, contents undefined, which the device copies from and to at full speed.

        Raises ResourceError if a GPU's driver cannot pin so much memory.
        """

    def upload(self, values: np.ndarray) -> Array:
        """The values themselves on the CPU; on a GPU a copy, for which nothing waits."""

    def workspace(self, **elements: int) -> Workspace:
        """Named buffers. elements: the size of each buffer from the start, so that it need not grow."""

    def padded(self, columns: int) -> int:
        """The number of columns that an input with this many columns has on the device. The added ones are zero."""

    def numpy(self, values: Array) -> np.ndarray:
        """The values on the host. On a GPU 16-bit values are converted to float32."""

    def fetch(self, values: Array) -> Callable[[], np.ndarray]:
        """Start to copy the values to the host. The returned call waits for them, and gives them as `numpy` does."""

    def batches(self, network: Network, sizes: Sequence[int], slots: int = 1) -> Batches:
        """The network, prepared for batches of these sizes.

        sizes: ascending. Sizes that do not fit in a GPU's memory are left out. slots: batches in flight in `stream`.
        Raises torch's OutOfMemoryError if the smallest does not fit.
        """

    def pipeline(self, slots: int) -> Pipeline:
        """A pipeline whose steps overlap completely: on a GPU each slot has its own stream."""

    def halving(self, run: Callable[[int], T], batch: int) -> T:
        """Call run(batch), and again with half the batch each time that a GPU's memory does not suffice.

        A failed run must leave no reference to what it allocated. Raises ResourceError if memory does not suffice for a
        batch of 1.
        """

    def enough_memory(self, what: str, remedy: str) -> AbstractContextManager[None]:
        """A block in which a lack of GPU memory becomes a ResourceError with this text and remedy."""
