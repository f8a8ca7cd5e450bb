"""The state of sequences on a GPU while they are decoded.

A decode step computes the embedding, all layers and the next token. It reads and writes tensors at fixed addresses. So
it is captured as a CUDA graph, once per number of rows, and then replayed: the host queues a step in microseconds.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from tilewright.backends.cuda import Workspace
from tilewright.backends.cuda_graph import Pool, Repeated
from tilewright.generation.cuda.advance import Rows, advance
from tilewright.generation.cuda.attention import CudaAttention, DecodeBatch, PromptBatch, hidden_states
from tilewright.generation.cuda.drawing import Drawing, Draws
from tilewright.generation.decoder import Decoder
from tilewright.ops.attention.operands import SPAN

STEPS = 128  # the tokens of so many steps are stored before they are copied to the host
PREFILLS = 16  # batches of prompts that are remembered
FINE = 16  # between two powers of two, graphs are captured for so many numbers of rows


@dataclass
class Prefill:
    """A batch of prompts and its prefill, which may also choose their next tokens. grown: `Workspace.grown` after its
    last run. If it is another now, the graph reads freed memory."""

    batch: PromptBatch
    repeated: Repeated[torch.Tensor]
    grown: int


class DecodeState:
    """Slots for the keys and values of sequences, and the tensors of a decode step of up to `rows` sequences.

    ids int64 (rows,); positions, slots int32 (rows,): the token that row i reads next, its position and its slot; a
    slot of -1 is empty. tokens int64 (STEPS + 1, rows): the tokens of each step, -1 if a row's logits are not finite.
    draws: whether tokens are sampled; otherwise the best ones are chosen.
    """

    def __init__(self, model: Decoder, attention: CudaAttention, slots: int, length: int, rows: int) -> None:
        self.model = weakref.proxy(model)  # the model owns this state, which must be freed with it
        self.sizes, self.backend, self.device = (slots, length, rows), attention.backend, attention.device
        self.caches = attention.caches(slots, length)
        self.nbytes = slots * attention.cache_bytes(length)
        self.prompt_work, self.work = Workspace(self.device, {}), Workspace(self.device, {})
        self.ids = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.positions = torch.zeros(rows, dtype=torch.int32, device=self.device)
        self.slots = torch.full_like(self.positions, -1)
        self.best = torch.zeros(rows, dtype=torch.int64, device=self.device), torch.zeros(rows, device=self.device)
        self.tokens = torch.zeros(STEPS + 1, rows, dtype=torch.int64, device=self.device)
        self.line = torch.zeros(1, dtype=torch.int64, device=self.device)  # the next step writes it
        self.drawing: Drawing | None = None
        self.draws = False
        self.graphs: dict[tuple[int, bool], Repeated[None]] = {}  # a decode step by (rows, draws)
        self.pool: Pool | None = None  # the memory that all graphs share
        self.prefills: dict[tuple[bytes, int | None, bool], Prefill] = {}  # by (spans of the prompts, first, draws)
        self._step(rows)  # the workspace reaches its full size before a graph stores its address

    def start(self, ids: np.ndarray, positions: np.ndarray, slots: np.ndarray, draws: Draws | None = None) -> None:
        """Set the sequences of the next steps: int (n,) each. draws: how their tokens are sampled; None: choose the
        best ones."""
        n, R = len(ids), len(self.ids)
        table = np.zeros((3, R), np.int32)
        table[:, :n], table[2, n:] = (ids, positions, slots), -1
        moved = self.backend.upload(table)
        self.ids.copy_(moved[0])
        self.positions.copy_(moved[1])
        self.slots.copy_(moved[2])
        self.line.zero_()
        self.draws = draws is not None
        if draws is not None:
            self.drawing = self.drawing or self._new_drawing()
            self.drawing.start(draws)

    def _new_drawing(self) -> Drawing:
        """Allocate the sampling tensors if necessary, from the memory of the prompts' workspace."""
        try:
            drawing = Drawing(self.model, self.device, len(self.ids), STEPS)
        except torch.cuda.OutOfMemoryError:
            self.release_prefills()
            torch.cuda.empty_cache()
            drawing = Drawing(self.model, self.device, len(self.ids), STEPS)
        self.nbytes += drawing.nbytes
        return drawing

    def prefill(
        self, ids: np.ndarray, positions: np.ndarray, spans: np.ndarray, first: int | None = None
    ) -> torch.Tensor:
        """Hidden states (n, C) after n prompts, see `Decoder.forward`. first: also choose the next tokens of the
        prompts, which become the tokens of the rows from `first` on; None: choose none.

        Prompts without a shared prefix are captured as a graph if a batch with the same spans was seen before, because
        a job has many lanes full of prompts of the same length.
        """
        shares_prefix = (spans[:, SPAN.source] >= 0).any()
        if shares_prefix or not self.backend.captures:
            return self._prefill(PromptBatch(self.backend, ids, positions, self.caches, spans), first)
        key = spans.tobytes(), first, self.draws
        known = self.prefills.get(key)
        if known is not None and known.grown == self.prompt_work.grown:
            known.batch.ids.copy_(self.backend.upload(ids))
        else:
            if len(self.prefills) >= PREFILLS:
                del self.prefills[next(iter(self.prefills))]  # the oldest
            batch = PromptBatch(self.backend, ids, positions, self.caches, spans)
            known = self.prefills[key] = Prefill(batch, Repeated(self._graph_pool()), 0)
        hidden = known.repeated.run(partial(self._prefill, known.batch, first))
        known.grown = self.prompt_work.grown
        return hidden

    def _prefill(self, batch: PromptBatch, first: int | None) -> torch.Tensor:
        hidden = self.model.forward(batch, self.prompt_work)
        if first is not None:
            self._choose(hidden, first)
        return hidden

    def release_prefills(self) -> None:
        """Free the workspace of prompts and the graphs that use it."""
        self.prefills, self.prompt_work = {}, Workspace(self.device, {})

    def _graph_pool(self) -> Pool:
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        return self.pool

    def _choose(self, hidden: torch.Tensor, first: int) -> None:
        """Set the tokens that follow hidden (n, C) as the first tokens of the rows from `first` on."""
        tokens, logits = self._next_tokens(hidden, first=first)
        if logits is not None:
            tokens = torch.where(logits.isfinite(), tokens, -1)
        self.ids[first : first + len(hidden)] = tokens

    def _next_tokens(
        self, hidden: torch.Tensor, *, first: int = 0, out: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The next tokens int64 (n,) of rows from `first` on, and their logits (n,). Drawn tokens have none: they are
        -1 if the logits of a row are not finite."""
        if self.draws and self.drawing is not None:
            return self.drawing.tokens(hidden, self.line, first), None
        return self.model.best(hidden, out=out)  # type: ignore[return-value]

    def decode(self, n: int, steps: int) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        """Queue `steps` decode steps of the first n rows.

        Returns tokens int64 (1 + steps, n) on the host, and the event of their copy; None: the copy is done. Line 0 has
        the tokens with which the rows started.
        """
        if steps and self.draws and self.drawing is not None:
            self.drawing.set_uniforms(1, 1 + steps)
        self.tokens[0].copy_(self.ids)
        self.line.fill_(1)
        R = self.rounded(n)
        for _ in range(steps):
            self.step(R)
        tokens = self.tokens[: 1 + steps, :n]
        if self.device == "cpu":
            return tokens.clone(), None
        host = torch.empty(tokens.shape, dtype=torch.int64, pin_memory=self.backend.pins)
        copied = torch.cuda.Event()
        host.copy_(tokens.contiguous(), non_blocking=True)
        copied.record()
        return host, copied

    def hidden(self, n: int) -> torch.Tensor:
        """(n, C): the hidden states of the last step."""
        return hidden_states(self.work, self.rounded(n), self.model.sizes.width, self.caches[0].dtype)[:n]

    def rounded(self, n: int) -> int:
        """The smallest of a few numbers of rows that is at least n."""
        unit = max(8, (1 << max(n - 1, 1).bit_length()) // (2 * FINE))
        return min(-(-n // unit) * unit, len(self.ids))

    def step(self, R: int) -> None:
        """Run one step of the first R rows. The first time it is run, which compiles its kernels; the second time it is
        captured."""
        if not self.backend.captures:
            self._step(R)
            return
        kind = R, self.draws
        if kind not in self.graphs:
            self.graphs[kind] = Repeated(self._graph_pool())
        self.graphs[kind].run(partial(self._step, R))

    def _step(self, R: int) -> None:
        ids, positions = self.ids[:R], self.positions[:R]
        batch = DecodeBatch(ids, positions, self.slots[:R], self.caches, self.sizes[1])
        hidden = self.model.forward(batch, self.work)
        found, logits = self._next_tokens(hidden, out=(self.best[0][:R], self.best[1][:R]))
        advance(found, logits, Rows(ids, positions, self.tokens, self.line), self.sizes[1])
