"""What a conv1d rung is handed: checked, three-dimensional, and without a None in it."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights as one rung wants them: what `conv1d.prepare` gives and `conv1d` takes in place of weight.

    rung: whose layout it is. O, C, K: output channels, input channels, taps. dtype: the accuracy class. data: the plain
    float32 (O, C, K) array for rungs that pack nothing, else the rung's own.
    """

    rung: str
    O: int
    C: int
    K: int
    dtype: str
    data: Any


@dataclass(frozen=True)
class Window:
    """How the taps move: tap t of position l reads number l * stride + t * dilation of x between `padding` zeros."""

    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def span(self, K: int) -> int:
        """Positions of x from the first of K taps to the last."""
        return self.dilation * (K - 1) + 1

    def positions(self, L: int, K: int) -> int:
        """Output positions for x of length L; below 1 if the taps do not fit."""
        return (L + 2 * self.padding - self.span(K)) // self.stride + 1


@dataclass(frozen=True, eq=False)
class Epilogue:
    """What follows the sum.

    bias: float32 (O,) or empty; activation, pool: a name or None, the maximum after the activation.
    """

    bias: np.ndarray
    activation: str | None
    pool: str | None
