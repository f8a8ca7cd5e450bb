"""A GPU as the place of a model: tensors, workspaces, the rows of a pass; and a room, where sequences live while they
are continued.

A decode step - embedding, all layers, the best token - reads and writes tensors that stay where they are, so that it is
captured once as a CUDA graph for each number of rows and then replayed: the host queues a step in microseconds.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright.generation.arrays_cpu import last_rows
from tilewright.generation.cuda.drawing import Chances, Draw
from tilewright.models.graphs import captured
from tilewright.ops.attention import DeviceCache, append, append_and_attend, attend, checked_spans
from tilewright.ops.attention.operands import SPAN
from tilewright.ops.core.arrays import one_of
from tilewright.ops.core.gpu.tensors import FLOATS, torch_dtype

SHARE = 0.7  # of the GPU's free memory, for keys and values unless the caller says
STEPS = 128  # tokens that a room notes before they are copied
PASSES = 16  # of prompts that are remembered
FINE = 16  # numbers of rows between two powers of two for which a graph is captured


class Workspace:
    """Tensors that are used again at the next pass, each (rows, columns) view made once."""

    def __init__(self, device: Any):
        self.device = device
        self.buffers: dict[str, Any] = {}
        self.views: dict[tuple, Any] = {}
        self.grown = 0  # times that a buffer was replaced by a larger one

    def take(self, name: str, rows: int, columns: int, dtype: Any = None):
        """(rows, columns), float32 unless given, whatever was left in it."""
        import torch

        key = name, rows, columns, dtype
        if key not in self.views:
            dtype = dtype or torch.float32
            size = rows * columns * dtype.itemsize
            if name not in self.buffers or len(self.buffers[name]) < size:
                self.views.clear()
                self.grown += 1
                self.buffers.pop(name, None)  # its memory may serve the larger one
                self.buffers[name] = torch.empty(size, dtype=torch.uint8, device=self.device)
            self.views[key] = self.buffers[name][:size].view(dtype).view(rows, columns)
        return self.views[key]


class Device:
    """A GPU as the place of a model, see `arrays_cpu.Host`; of products, queries, keys and values in the class's dtype.

    name: "cuda", or "cpu" where kernels are run as Python.
    """

    def __init__(self, dtype: str, name: str = "cuda"):
        import torch

        self.device = torch.device(name)
        self.kind = torch_dtype(one_of("gpt2", "dtype", dtype, FLOATS))
        self.idle: Room | None = None  # what the last generator has left

    @property
    def memory(self) -> int:
        """Bytes of keys and values unless the caller says: a share of what is free."""
        import torch

        if self.device.type == "cpu":
            return 1 << 30
        free, _ = torch.cuda.mem_get_info(self.device)
        free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(SHARE * (free + (self.idle.nbytes if self.idle else 0)))

    def array(self, weights: np.ndarray):
        """A float32 copy on the device."""
        import torch

        return torch.from_numpy(np.array(weights, np.float32)).to(self.device)

    vector = array

    def upload(self, values: np.ndarray):
        """A copy on the device; nothing waits for it."""
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(values))
        return tensor if self.device.type == "cpu" else tensor.pin_memory().to(self.device, non_blocking=True)

    def numpy(self, values: Any) -> np.ndarray:
        """A copy on the host, 16 bits widened to float32."""
        return (values.float() if values.is_floating_point() else values).cpu().numpy()

    def finite(self, rows: Any) -> np.ndarray:
        """Which of (n, C) hold no NaN and no infinity: bool (n,)."""
        return rows.isfinite().all(1).cpu().numpy()

    def workspace(self) -> Workspace:
        """For one generator."""
        return Workspace(self.device)

    def batch(self, ids: np.ndarray, positions: np.ndarray, caches: Sequence[Any], spans: np.ndarray) -> PromptRows:
        """See `PromptRows`."""
        return PromptRows(self, ids, positions, caches, spans)

    def cache(self, slots: int, heads: int, length: int, D: int, dtype: str):
        """Keys and values of one layer, see `DeviceCache`."""
        return DeviceCache.on(self.device, slots, heads, length, D, dtype)

    def keep(self, caches: list[Any]) -> None:
        """They belong to a room, which keeps them."""

    def cache_bytes(self, heads: int, length: int, D: int, dtype: str) -> int:
        """Bytes of one sequence's keys and values in one layer."""
        return 2 * heads * length * D * torch_dtype(dtype).itemsize

    def final(self, work: Workspace, rows: int, columns: int):
        """Where the last norm's result goes: only products read it."""
        return work.take("final", rows, columns, self.kind)

    def engine(self, *model: Any, **options: Any):
        """See `DeviceGenerator`."""
        from tilewright.generation.cuda.engine import DeviceGenerator

        return DeviceGenerator(*model, **options)

    def room(self, model: Any, slots: int, length: int, rows: int) -> Room:
        """The room that the last generator has left, if it is one of these sizes, else a new one."""
        left, self.idle = self.idle, None
        if left is not None and left.sizes == (slots, length, rows):
            return left
        del left  # its memory may be wanted
        return Room(model, slots, length, rows)


class PromptRows:
    """The rows of prompts, and which of them attend to each other. spans: int64 (n, 5), see `ops.attention.span`."""

    def __init__(self, place: Device, ids, positions, caches: Sequence[Any], spans: np.ndarray):
        last, alone = last_rows(spans)
        self.caches, self.every = caches, len(last) == len(ids)
        self.ids, self.positions = place.upload(ids), place.upload(positions.astype(np.int32))
        self.each, self.ends = checked_spans(spans, caches[0], len(ids)), checked_spans(alone, caches[0], len(last))
        self.last = place.upload(last)

    def attended(self, i: int, x: Any, qkv: Any, scale: float, work: Workspace):
        """(x, attention of qkv in layer i); in the last layer, of the last row of each span only. Appends the new keys
        and values to the cache."""
        C, cache, each = x.shape[1], self.caches[i], self.each
        q, k, v = qkv[:, :C], qkv[:, C : 2 * C], qkv[:, 2 * C :]
        new: tuple | None = (k, v)
        if i == len(self.caches) - 1 and not self.every:
            append(k, v, cache, each)
            x, q, each, new = x.index_select(0, self.last), q.index_select(0, self.last), self.ends, None
        return x, attend(q, cache, each, scale=scale, new=new, out=work.take("y", len(x), C, qkv.dtype))


class StepRows:
    """Rows that are one new position each of as many sequences: the first R of a room's."""

    def __init__(self, room: Room, R: int):
        self.ids, self.positions, self.slots = room.ids[:R], room.positions[:R], room.slots[:R]
        self.caches, self.longest = room.caches, room.sizes[1]

    def attended(self, i: int, x: Any, qkv: Any, scale: float, work: Workspace):
        """(x, attention of qkv in layer i). Appends the new keys and values to the cache."""
        C = x.shape[1]
        out = work.take("y", len(x), C, qkv.dtype)
        return x, append_and_attend(
            qkv[:, :C], qkv[:, C : 2 * C], qkv[:, 2 * C :], self.caches[i], self.slots, self.positions,
            longest=self.longest, scale=scale, out=out,
        )  # fmt: skip


class Pass(NamedTuple):
    """Prompts that were captured: the CUDA graph, the rows that it reads, the states that it leaves, and how often the
    workspace had grown."""

    graph: Any
    rows: PromptRows
    hidden: Any
    grown: int


class Room:
    """Slots for the keys and values of sequences, and the tensors of a decode step of up to `rows` of them.

    ids, positions, slots: what row i will look at next; a slot of -1 is nobody's. notes (STEPS + 1, rows): the tokens
    of each step, -1 where a row's logits are not finite. draws: whether they are drawn by chance, not the best ones.
    """

    def __init__(self, model: Any, slots: int, length: int, rows: int):
        import torch

        self.model = weakref.proxy(model)  # which keeps the room, and is to be freed with it
        self.sizes, device = (slots, length, rows), model.place.device
        self.caches = model.caches(slots, length)
        self.nbytes = slots * model.cache_bytes(length)
        self.prompts, self.work = Workspace(device), Workspace(device)
        self.ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self.positions = torch.zeros(rows, dtype=torch.int32, device=device)
        self.slots = torch.full_like(self.positions, -1)
        self.best = torch.zeros(rows, dtype=torch.int64, device=device), torch.zeros(rows, device=device)
        self.notes = torch.zeros(STEPS + 1, rows, dtype=torch.int64, device=device)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)  # the row of notes that the next step writes
        self.draw: Draw | None = None
        self.draws = False
        self.graphs: dict[tuple[int, bool], Any] = {}  # by their number of rows, and draws; None: it was run once
        self.pool: Any = None
        self.passes: dict[bytes, Pass | None] = {}  # prompts by their spans; None: they came once
        self._step(rows)  # the workspace has its full size before a graph holds its address

    def start(self, ids: np.ndarray, positions: np.ndarray, slots: np.ndarray, chances: Chances | None = None) -> None:
        """The sequences of the next steps: int (n,) each, what each looks at next and where; chances: by which their
        tokens are drawn, None for the best ones."""
        n, R = len(ids), len(self.ids)
        table = np.zeros((3, R), np.int32)
        table[:, :n], table[2, n:] = (ids, positions, slots), -1
        moved = self.model.place.upload(table)
        self.ids.copy_(moved[0])
        self.positions.copy_(moved[1])
        self.slots.copy_(moved[2])
        self.at.zero_()
        self.draws = chances is not None
        if chances is not None:
            self.draw = self.draw or self._drawing()
            self.draw.start(chances)

    def _drawing(self) -> Draw:
        """What tokens are drawn with, if need be in the memory of the prompts' workspace."""
        import torch

        try:
            draw = Draw(self.model, len(self.ids), STEPS)
        except torch.cuda.OutOfMemoryError:
            self.forget()
            torch.cuda.empty_cache()
            draw = Draw(self.model, len(self.ids), STEPS)
        self.nbytes += draw.nbytes
        return draw

    def prompt_states(self, ids: np.ndarray, positions: np.ndarray, spans: np.ndarray):
        """`GPT2.hidden` of prompts. Where they are whole, and lie as they lay before, their pass is captured: a job has
        many lanes full of prompts of one length."""
        model, key = self.model, spans.tobytes()
        passed = self.passes.get(key)
        if model.place.device.type == "cpu" or (spans[:, SPAN.source] >= 0).any():
            return model.hidden(ids, positions, self.caches, spans, self.prompts)
        if passed is not None and passed.grown == self.prompts.grown:
            passed.rows.ids.copy_(model.place.upload(ids))
            passed.graph.replay()
            return passed.hidden
        if len(self.passes) >= PASSES:
            self.passes.clear()
        rows, again = model.batch(ids, positions, self.caches, spans), key in self.passes
        self.passes[key] = None
        hidden = model.through(rows, self.prompts)
        if again:
            graph, kept = captured(lambda: model.through(rows, self.prompts), self._pool())
            self.passes[key] = Pass(graph, rows, kept, self.prompts.grown)
        return hidden

    def forget(self) -> None:
        """Give memory back: the workspace of prompts and what was captured on it."""
        self.passes, self.prompts = {}, Workspace(self.model.place.device)

    def _pool(self) -> Any:
        """The memory that all graphs share."""
        import torch

        self.pool = self.pool or torch.cuda.graph_pool_handle()
        return self.pool

    def choose(self, hidden: Any, at: int) -> None:
        """Rows from `at` on will look at the tokens after hidden (n, C), which are noted."""
        self.ids[at : at + len(hidden)] = self._tokens(hidden, first=at)

    def _tokens(self, hidden: Any, *, first: int = 0, out: Any = None):
        """int64 (n,): of rows from `first` on, -1 where their logits are not finite."""
        import torch

        if self.draws and self.draw is not None:
            return self.draw.tokens(hidden, self.at, first)
        tokens, values = self.model.best_on_device(hidden, out=out)
        return torch.where(values.isfinite(), tokens, -1)

    def advance(self, n: int, steps: int):
        """`steps` steps of the first n rows, queued: int64 (1 + steps, n) on the host once `landed`, which is returned
        beside it (None: it is there already). Its first line is what the rows looked at first."""
        import torch

        self.notes[0].copy_(self.ids)
        self.at.fill_(1)
        R = self.rounded(n)
        for _ in range(steps):
            self.step(R)
        notes = self.notes[: 1 + steps, :n]
        if self.model.place.device.type == "cpu":
            return notes.clone(), None
        landed = torch.cuda.Event()
        kept = torch.empty(notes.shape, dtype=torch.int64, pin_memory=True)
        kept.copy_(notes.contiguous(), non_blocking=True)
        landed.record()
        return kept, landed

    def hidden(self, n: int):
        """(n, C): the states from which the last step chose."""
        R, C = self.rounded(n), self.model.config.n_embd
        return self.model.place.final(self.work, R, C)[:n]

    def rounded(self, n: int) -> int:
        """A number of rows of at least n, one of few."""
        unit = max(8, (1 << max(n - 1, 1).bit_length()) // (2 * FINE))
        return min(-(-n // unit) * unit, len(self.ids))

    def step(self, R: int) -> None:
        """One step of the first R rows: as it is written the first time, which compiles its kernels; then captured."""
        kind = R, self.draws
        if self.model.place.device.type == "cpu" or kind not in self.graphs:
            self.graphs[kind] = None
            self._step(R)
            return
        if self.graphs[kind] is None:
            self.graphs[kind], _ = captured(lambda: self._step(R), self._pool())
        self.graphs[kind].replay()

    def _step(self, R: int) -> None:
        hidden = self.model.through(StepRows(self, R), self.work)
        ids, positions = self.ids[:R], self.positions[:R]
        ids.copy_(self._tokens(hidden, out=tuple(part[:R] for part in self.best)))
        positions.add_(1).clamp_(max=self.sizes[1] - 1)  # of ended sequences, whose rows go on until the host knows
        self.notes.index_copy_(0, self.at, self.ids[None])
        self.at.add_(1).clamp_(max=STEPS)
