"""Sampling of tokens on the GPU. The rules of a lane's rows and the random numbers of the next steps are uploaded
before they are needed. So a step that samples is queued and captured like a step that chooses the best token.

The random numbers are those of `random_numbers.uniforms`. The host computes most of them after it has queued the
prefill, while the GPU works.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from tilewright.backends.cuda import Cuda
from tilewright.generation.decoder import Decoder
from tilewright.generation.random_numbers import uniforms
from tilewright.generation.sampling import SamplingParams
from tilewright.ops.matmul import PEAK, peaks_of
from tilewright.ops.sample import Rules, draw, rules
from tilewright.ops.sample.operands import FLOAT

LOGITS_BYTES = 256 << 20  # bytes of logits that are computed at a time


class Draws(NamedTuple):
    """How the tokens of n rows are sampled. floats float64 (n, 5), integers int64 (n, 5): rules, see
    `ops.sample.Rules`. streams: of random numbers, uint32 (n, 4). first: int64 (n,), the index within its completion of
    the token after the prefill."""

    floats: np.ndarray
    integers: np.ndarray
    streams: np.ndarray
    first: np.ndarray

    def uniforms(self, begin: int, end: int) -> np.ndarray:
        """float64 (end - begin, n): the random numbers of the tokens after the prefill, which is line 0, and after each
        step."""
        at = self.first + np.arange(begin, end)[:, None]
        return uniforms(self.streams, np.maximum(at, 0))  # a row without a prefill samples no token with line 0


def draws_of(params: list[SamplingParams], each: np.ndarray, streams: np.ndarray, first: np.ndarray) -> Draws:
    """The sampling of n rows. Row i has params[each[i]]. streams, first: see `Draws`."""
    floats, integers, *_ = rules_of(params)
    return Draws(floats[each], integers[each], streams, first)


def rules_of(params: list[SamplingParams]) -> Rules:
    """The rules of `params`. Their random numbers are set later."""
    limits = [p.top_k for p in params], [p.top_p for p in params], [p.min_p for p in params]
    return rules(np.zeros(len(params)), limits, temperature=[p.temperature for p in params])


class Drawing:
    """The tensors with which a lane's rows are sampled. rows: the most. steps: the most between two copies to the
    host."""

    def __init__(self, model: Decoder, device: str, rows: int, steps: int) -> None:
        self.model = model  # `model` is the decode state's proxy, so this reference does not keep the model alive
        self.given: Draws | None = None
        self.floats = torch.zeros(rows, 5, dtype=torch.float64, device=device)
        self.integers = torch.zeros(rows, 5, dtype=torch.int64, device=device)
        self.uniforms = torch.full((steps + 1, rows), 0.5, dtype=torch.float64, device=device)
        self.chosen = torch.zeros(rows, dtype=torch.int64, device=device)
        V = model.sizes.vocabulary  # a captured step needs its logits at a fixed address
        groups, most = peaks_of(V), min(max(1, LOGITS_BYTES // (4 * V)), rows)
        self.logits = torch.empty(most, groups * PEAK, device=device)[:, :V]  # rows begin at multiples of 128 bytes
        self.peaks = torch.empty(most, groups, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes on the GPU."""
        parts = self.floats, self.integers, self.uniforms, self.chosen, self.peaks
        return sum(part.nbytes for part in parts) + self.logits.untyped_storage().nbytes()

    def start(self, given: Draws) -> None:
        """Set the rules of the next prefill and steps, and the random numbers of the prefill."""
        self.given, n = given, len(given.floats)
        self.floats[:n].copy_(self.upload(given.floats))
        self.integers[:n].copy_(self.upload(given.integers))
        self.set_uniforms(0, 1)

    def set_uniforms(self, begin: int, end: int) -> None:
        """Set the random numbers of lines from `begin` on: line 0 is the prefill's, the others are those of steps."""
        assert self.given is not None
        drawn = self.given.uniforms(begin, end)
        self.uniforms[begin:end, : drawn.shape[1]].copy_(self.upload(drawn))

    def upload(self, array: np.ndarray) -> torch.Tensor:
        """The array on the GPU, see `Cuda.upload`."""
        backend = self.model.backend
        assert isinstance(backend, Cuda)
        return backend.upload(array)

    def tokens(self, hidden: torch.Tensor, line: torch.Tensor, first: int = 0) -> torch.Tensor:
        """int64 (n,) for rows from `first` on, -1 if the logits of hidden (n, C) are not finite. line: int64 (1,) on
        the GPU, the index of the line of the uniforms."""
        n, part = len(hidden), len(self.logits)
        floats, integers, chosen = (rows[first : first + n] for rows in (self.floats, self.integers, self.chosen))
        floats[:, FLOAT.u].copy_(self.uniforms.index_select(0, line)[0, first : first + n])
        for at in range(0, n, part):
            rows = slice(at, min(at + part, n))
            count = rows.stop - at
            logits, peaks = self.model.logits_and_peaks(hidden[rows], self.logits[:count], self.peaks[:count])
            draw(logits, floats[rows], integers[rows], chosen[rows], peaks=peaks)
        return chosen
