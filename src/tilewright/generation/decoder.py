"""The interfaces between models and engines. They do not depend on a network or a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tilewright.backends.protocol import Array, Backend, Workspace
from tilewright.ops.attention import Cache


class Sizes(NamedTuple):
    """Sizes of a decoder. context: the largest number of positions. vocabulary: number of tokens. width: elements of a
    hidden state. heads, head_size: of keys and values; with grouped queries, queries have more heads."""

    context: int
    vocabulary: int
    width: int
    layers: int
    heads: int
    head_size: int


class Batch(Protocol):
    """Rows of one pass through the model. A row is a token at its position in its sequence."""

    @property
    def ids(self) -> Array:
        """Token ids int64 (rows,)."""

    @property
    def positions(self) -> Array:
        """Each row's position in its sequence (rows,)."""

    def attend(
        self, layer: int, x: Array, q: Array, k: Array, v: Array, scale: float, work: Workspace
    ) -> tuple[Array, Array]:
        """(x, attention of q): x (R, C), q (R, heads * head_size), k and v (R, width of a cached row).

        Appends k and v to the layer's cache; each row attends to its sequence up to itself. The last layer returns only
        the last row of each sequence, because nothing reads the others.
        """

    def output(self, work: Workspace, rows: int, columns: int) -> Array | None:
        """The buffer for the hidden states; None: a new array is allocated."""

    def run(self, x: Array, layers: Callable[[], Array]) -> Array:
        """layers(), the hidden states computed from x. A batch on a CPU may instead run the launches of its last pass
        again, see `ops.core.recording`."""


class Attention(Protocol):
    """Cached keys and values on one device, and the batches that attend to them. One per model."""

    @property
    def memory(self) -> int:
        """Bytes for keys and values by default."""

    def caches(self, slots: int, length: int) -> list[Cache]:
        """One cache per layer, for `slots` sequences of up to `length` positions."""

    def cache_bytes(self, length: int) -> int:
        """Bytes of one sequence's keys and values in all layers."""

    def leave(self, caches: list[Cache]) -> None:
        """Take back caches that an engine no longer needs, for the next engine."""

    def batch(
        self,
        ids: np.ndarray,
        positions: np.ndarray,
        caches: Sequence[Cache],
        spans: np.ndarray,
        last: Batch | None = None,
        kept: np.ndarray | None = None,
    ) -> Batch:
        """ids, positions: int64 (rows,). spans: int64 (n, 5), the rows of each sequence, see `ops.attention.span`.
        last: the engine's last batch, which may be changed and returned if it had the same sequences.
        kept: int64 (n,), how many rows at the end of each sequence the last layer returns; None: one."""


class ScoringDecoder(Protocol):
    """A model that scores given tokens."""

    @property
    def sizes(self) -> Sizes: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def attention(self) -> Attention: ...

    def forward(self, batch: Batch, work: Workspace) -> Array:
        """See `Decoder`."""

    def logprobs(self, hidden: Array, targets: np.ndarray) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
        """Queue the computation and return a function. The function waits, then returns (log-probability float32 (n,)
        of each row's target, bool (n,): whether it is the likeliest token)."""


class Decoder(Protocol):
    """A model that generates text. It computes hidden states of a batch, and the logits or the best token of hidden
    states."""

    @property
    def sizes(self) -> Sizes: ...
    @property
    def dtype(self) -> str: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def attention(self) -> Attention: ...

    def forward(self, batch: Batch, work: Workspace) -> Array:
        """Hidden states (n, width), after the last norm, of the last row of each of the batch's n sequences."""

    def logits(self, hidden: Array, out: Array | None = None) -> Array:
        """float32 (n, vocabulary)."""

    def logits_and_peaks(self, hidden: Array, out: Array, peaks: Array) -> tuple[Array, Array | None]:
        """On a GPU: (logits, peaks). peaks is None if the model stores none, see `ops.matmul.matmul_peaks`. out:
        float32 (n, vocabulary), its rows may have a stride. peaks: float32 (n, peaks_of(vocabulary))."""

    def best(self, hidden: Array, out: tuple[Array, Array] | None = None) -> tuple[Array, Array]:
        """(token int64 (n,), logit float32 (n,)) of the largest logit of each row, or the lowest id of several equal
        ones."""
