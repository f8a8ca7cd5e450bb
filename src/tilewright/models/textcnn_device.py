"""TextCNN on a GPU: weights are copied there once, and the network is one CUDA graph for each of a few batch sizes.

The host checks ids, then queues for each batch a copy in, a graph and a copy out. It prepares the next batch meanwhile,
and waits once, at the end. Finding new tokens on the host takes longer than a batch on the GPU. If the previous call
met no new token, this call runs speculatively without checking. The GPU flags sentences that did contain one; their
rows are computed, and the call runs again.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import ResourceError
from tilewright.models.graphs import captured
from tilewright.ops.core.gpu.tensors import torch_dtype
from tilewright.ops.embedding import checked_ids
from tilewright.ops.embedding_conv1d import Located, embedding_conv1d
from tilewright.ops.embedding_conv1d import prepare as prepare_convolutions
from tilewright.ops.embedding_conv1d.device_table import DeviceTable
from tilewright.ops.matmul import matmul
from tilewright.ops.matmul import prepare as prepare_matrix

# Sentences of a batch. On an H200 in float32 128 take 153 us, 1,024 take 188 and 8,192 take 1,480: from 1,024 on it
# pays to fill a batch; of fewer, the smallest batch is taken that holds them.
SIZES = (128, 1024, 8192)
FULL = 1024
SIMULATED = 4  # sentences of the only batch where kernels run as Python


class DeviceTextCNN:
    """A TextCNN ready to run on a GPU; `models.textcnn.TextCNN` checks arguments before it gets here.

    weights: float32 arrays. device: a torch device; on "cpu", for tests, kernels run as Python and there is no graph.
    Raises ResourceError where the GPU's memory does not hold the weights, one sentence's rows and the smallest batch.
    """

    def __init__(
        self, config, weights: Mapping[str, np.ndarray], *, dtype: str, table_memory: int | None, device: str = "cuda"
    ):
        import torch

        self.config, self.dtype, self.device = config, dtype, torch.device(device)
        branches = range(len(config.kernel_sizes))
        try:
            self.convolutions = prepare_convolutions(
                self._moved(weights["embedding.weight"]),
                [self._moved(weights[f"convs.{i}.weight"]) for i in branches],
                [self._moved(weights[f"convs.{i}.bias"]) for i in branches],
                length=config.sequence_length,
                dtype=dtype,
                memory=table_memory,
            )
            self.linears = [
                (
                    prepare_matrix(self._moved(weights[f"linears.{i}.weight"]).T, dtype=dtype),
                    self._moved(weights[f"linears.{i}.bias"]),
                )
                for i in range(len(config.hidden_sizes) + 1)
            ]
        except torch.cuda.OutOfMemoryError as error:
            raise ResourceError(
                f"the GPU's memory does not hold the weights: {error}", hint="run on the CPU"
            ) from error
        state = self.convolutions.state
        self.table = state if isinstance(state, DeviceTable) else None
        self.settled = False  # True if the last call had no token that was new to the table
        self.batches = self._batches()

    def _moved(self, array: np.ndarray):
        import torch

        return torch.from_numpy(np.array(array, np.float32)).to(self.device)

    def _batches(self) -> dict[int, "Batch"]:
        """A batch for each of SIZES that fits in memory."""
        import torch

        found: dict[int, Batch] = {}
        for size in SIZES if self.device.type == "cuda" else (SIMULATED,):
            try:
                found[size] = Batch(self, size)
            except torch.cuda.OutOfMemoryError as error:
                if not found:
                    what = f"the GPU's memory does not hold a batch of {size} sentences beside the weights"
                    hint = "give the token table less (table_memory, --table-memory on the command line)"
                    raise ResourceError(what, hint=f"{hint}, or run on the CPU") from error
                break
        return found

    def logits(self, ids: np.ndarray) -> np.ndarray:
        """Token ids int (n, sequence_length) -> float32 (n, num_labels), as `TextCNN.logits`.

        Where there is no memory for the table's new rows, the largest batch gives its own, while there is a smaller
        one. Raises torch's OutOfMemoryError.
        """
        import torch

        while True:
            try:
                return self._logits(ids)
            except torch.cuda.OutOfMemoryError:
                if len(self.batches) == 1:
                    raise
            self._wait()
            del self.batches[max(self.batches)]
            torch.cuda.empty_cache()

    def _logits(self, ids: np.ndarray) -> np.ndarray:
        import torch

        ids = np.ascontiguousarray(checked_ids(ids, self.config.vocab_size), np.int32)
        staging = partial(torch.empty, pin_memory=self.device.type == "cuda")
        call = Staged(
            ids, staging(ids.shape, dtype=torch.int32), staging((len(ids), self.config.num_labels)),
            staging(len(ids), dtype=torch.int32),
        )  # fmt: skip
        table = self.table
        if table and not table.holds_all:
            for first, end, _ in table.batches(ids, max(self.batches)):
                self._queue(call, first, end)
            self._wait()
            return call.logits.numpy().copy()
        built = table.built if table else 0
        if table and not self.settled:
            table.precompute(ids)
        self._queue(call, 0, len(ids))
        self._wait()
        if table and call.lowest.numpy().min(initial=0) < 0:
            table.precompute(ids)
            self._queue(call, 0, len(ids))
            self._wait()
        self.settled = table is not None and table.built == built
        return call.logits.numpy().copy()

    def forget(self) -> None:
        """Empty the token table, if there is one, as before a measurement."""
        if self.table:
            self.table.clear()
        self.settled = False

    def _queue(self, call: "Staged", first: int, end: int) -> None:
        """Queue sentences `first` to `end` of a call, in batches."""
        for start, size, count in self._pieces(first, end):
            piece = slice(start, start + count)
            call.sent[piece].numpy()[...] = call.ids[piece]
            self.batches[size].run(call.sent[piece], call.logits[piece], call.lowest[piece])

    def _wait(self) -> None:
        import torch

        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def _pieces(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(start, size of its batch, sentences): full batches while FULL or more are left, then one that holds the
        rest."""
        while first < end:
            rest = end - first
            full = [size for size in self.batches if FULL <= size <= rest]
            size = (
                max(full) if full else min((size for size in self.batches if size >= rest), default=max(self.batches))
            )
            yield first, size, min(size, rest)
            first += size


class Staged(NamedTuple):
    """A call's arrays on the host, all but the first in pinned memory: ids (n, L), the same to be sent, logits
    (n, labels), and (n,) the lowest slot of each sentence's tokens, -1 if a token had none."""

    ids: np.ndarray
    sent: Any
    logits: Any
    lowest: Any


class Batch:
    """`size` sentences from ids to logits, in memory that stays: a CUDA graph needs the same addresses again."""

    def __init__(self, model: DeviceTextCNN, size: int):
        import torch

        self.model = model
        self.ids = torch.zeros((size, model.config.sequence_length), dtype=torch.int32, device=model.device)
        self.lowest = self.ids.new_empty(size)
        self.logits = torch.empty((size, model.config.num_labels), device=model.device)
        self.graph = None
        if model.device.type == "cuda":
            self.compute()  # compiles what is not compiled yet
            torch.cuda.synchronize(model.device)
            self.graph, _ = captured(self.compute)

    def compute(self) -> None:
        """Queue the network's kernels. Activations have the 16-bit dtype of the class, if it has one."""
        import torch

        model, size = self.model, len(self.logits)
        slots = self.ids  # ids themselves for a rung without a table
        if model.table:
            slots = model.table.device_slots.index_select(0, self.ids.view(-1)).view(self.ids.shape)
            torch.amin(slots, 1, out=self.lowest)
        new = partial(self.logits.new_empty, dtype=torch_dtype(model.dtype))
        features = len(model.config.kernel_sizes) * model.config.num_filters
        x = embedding_conv1d(Located(slots.clamp(min=0)), model.convolutions, out=new((size, features)))
        for weight, bias in model.linears[:-1]:
            x = matmul(x, weight, bias=bias, activation="relu", out=new((size, weight.N)))
        weight, bias = model.linears[-1]
        matmul(x, weight, bias=bias, out=self.logits)

    def run(self, ids, logits, lowest) -> None:
        """Queue the copy of ids (n, L) in, the network, and the copies of its logits (n, labels) and of the lowest
        slots (n,) out. n is at most the batch's size; results after the first n are ignored."""
        n = len(ids)
        self.ids[:n].copy_(ids, non_blocking=True)
        if self.graph:
            self.graph.replay()
        else:
            self.compute()
        logits.copy_(self.logits[:n], non_blocking=True)
        lowest.copy_(self.lowest[:n], non_blocking=True)
