"""Operands of a conv1d rung: checked, three-dimensional, never None."""

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import UsageError

ACTIVATIONS = (None, "relu")
MOST_PADDING = 2**31 - 1  # zeros on each side: kernels' integers must not overflow


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights in the layout of one rung: the result of `conv1d.prepare`, an argument of `conv1d`.

    rung: its name. O, C, K: output channels, input channels, taps. dtype: the accuracy class. data: the plain
    float32 (O, C, K) array for rungs that pack nothing, otherwise the rung's own layout.
    """

    rung: str
    O: int
    C: int
    K: int
    dtype: str
    data: Any

    def memory(self):
        """The array or tensor that holds the weights."""
        return self.data if isinstance(self.data, np.ndarray) else getattr(self.data, "data", self.data)


@dataclass(frozen=True)
class Window:
    """Tap t of position l reads element l * stride + t * dilation of x, which has `padding` zeros on each side."""

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
    """The operations after the sum.

    bias: float32 (O,) or empty; activation, pool: a name or None, the maximum after the activation.
    """

    bias: np.ndarray
    activation: str | None
    pool: str | None


def window_of(stride, padding, dilation, L: int, K: int) -> Window:
    """The checked window, with its steps limited to x. Raises UsageError unless it has a position."""
    window = Window(_integer("stride", stride, 1), _integer("padding", padding, 0), _integer("dilation", dilation, 1))
    if window.padding > MOST_PADDING:
        raise UsageError(f"conv1d: padding is {window.padding}; at most {MOST_PADDING} is wanted")
    if window.positions(L, K) < 1:
        raise UsageError(
            f"conv1d: {K} taps with dilation {window.dilation} span {window.span(K)} positions; x has {L}, "
            f"{L + 2 * window.padding} with its padding of {window.padding} on both sides"
        )
    # a step that is never taken is shortened, so that rungs' buffers stay small
    return Window(min(window.stride, L + 2 * window.padding), window.padding, window.dilation if K > 1 else 1)


def _integer(name: str, value, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise UsageError(f"conv1d: {name} is {value!r}; an integer is wanted") from error
    if number < least:
        raise UsageError(f"conv1d: {name} is {number}; at least {least} is wanted")
    return number
