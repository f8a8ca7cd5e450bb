"""Tokens by chance, chosen on the GPU: the rules of a room's rows and the random numbers of the steps ahead lie there
before they are wanted, so that a step that samples is queued and captured like one that takes the best token.

The random numbers are those of `sampler.uniforms`, which the host makes while the GPU works on another lane.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewright.generation.rules import uniforms
from tilewright.generation.sampling import SamplingParams
from tilewright.ops.sample import Rules, draw, rules
from tilewright.ops.sample.operands import FLOAT

LOGITS_BYTES = 256 << 20  # of those held at a time


class Chances(NamedTuple):
    """floats float64 (n, 5), integers int64 (n, 5): rules of n rows, see `ops.sample.Rules`; uniforms: float64
    (1 + steps, n), the random numbers of the tokens that their prompts give and of each step."""

    floats: np.ndarray
    integers: np.ndarray
    uniforms: np.ndarray


def chances(params: list[SamplingParams], each: np.ndarray, streams: np.ndarray, first: np.ndarray, steps: int):
    """The chances of n rows: params[each[i]], streams uint32 (n, 4), and the number `first` (n,) of the token that a
    row's line 0 is for."""
    floats, integers, *_ = rules_of(params)
    at = np.maximum(first + np.arange(1 + steps)[:, None], 0)  # a row that is decoded has no token to draw in line 0
    drawn = uniforms(np.tile(streams, (len(at), 1)), at.ravel()).reshape(at.shape)
    return Chances(floats[each], integers[each], drawn)


def rules_of(params: list[SamplingParams]) -> Rules:
    """Those of `params`, whose random numbers are yet to be set."""
    limits = [p.top_k for p in params], [p.top_p for p in params], [p.min_p for p in params]
    return rules(np.zeros(len(params)), limits, temperature=[p.temperature for p in params])


class Draw:
    """What a room's rows are sampled with. rows: at most; steps: those between two copies to the host."""

    def __init__(self, model: Any, rows: int, steps: int):
        import torch

        self.model, where = model, model.place.device  # `model` is a room's proxy: nothing here keeps it
        self.floats = torch.zeros(rows, 5, dtype=torch.float64, device=where)
        self.integers = torch.zeros(rows, 5, dtype=torch.int64, device=where)
        self.uniforms = torch.full((steps + 1, rows), 0.5, dtype=torch.float64, device=where)
        self.chosen = torch.zeros(rows, dtype=torch.int64, device=where)
        V = model.config.vocab_size  # as many logits as a step ever holds: captured steps know where they lie
        self.logits = torch.empty(min(max(1, LOGITS_BYTES // (4 * V)), rows), V, device=where)

    @property
    def nbytes(self) -> int:
        """Bytes on the GPU."""
        return sum(part.nbytes for part in (self.floats, self.integers, self.uniforms, self.chosen, self.logits))

    def start(self, given: Chances) -> None:
        """What the next prompts and steps go by."""
        lines, n = given.uniforms.shape
        for kept, new in ((self.floats[:n], given.floats), (self.integers[:n], given.integers)):
            kept.copy_(self.model.place.upload(new))
        self.uniforms[:lines, :n].copy_(self.model.place.upload(given.uniforms))

    def tokens(self, hidden: Any, line: Any, first: int = 0):
        """int64 (n,) for rows from `first` on, -1 where the logits of hidden (n, C) are not finite. line: int64 (1,) on
        the GPU, that of the random numbers."""
        n, part = len(hidden), len(self.logits)
        floats, integers, chosen = (kept[first : first + n] for kept in (self.floats, self.integers, self.chosen))
        floats[:, FLOAT.u].copy_(self.uniforms.index_select(0, line)[0, first : first + n])
        for at in range(0, n, part):
            rows = slice(at, min(at + part, n))
            logits = self.model.logits_on_device(hidden[rows], self.logits[: rows.stop - at])
            draw(logits, floats[rows], integers[rows], chosen[rows])
        return chosen
