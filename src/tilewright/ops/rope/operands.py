"""What a rung of rope receives besides the rows."""

from typing import Any, NamedTuple

import numpy as np


class Rotation(NamedTuple):
    """The angles of a model's positions. frequencies: float32 (F,). table: float32 (length, 2 F), of each position the
    cosines and then the sines of the angles float32(position * frequency). NumPy arrays, or tensors on a GPU."""

    frequencies: Any
    table: Any

    @property
    def length(self) -> int:
        """Positions that there are."""
        return self.table.shape[0]

    @property
    def pairs(self) -> int:
        """Pairs of elements of a head that are rotated."""
        return self.frequencies.shape[0]


def inverse_frequencies(rotary: int, theta: float) -> np.ndarray:
    """float32 (rotary / 2,): 1 / theta ** (2 i / rotary), as the libraries that train such models round it."""
    exponents = np.arange(0, rotary, 2, dtype=np.float32) / np.float32(rotary)
    return np.float32(1) / np.power(np.float64(theta), exponents.astype(np.float64)).astype(np.float32)


def angles(positions: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """float32 (n, F): each position times each frequency, rounded once."""
    return positions.astype(np.float32)[:, None] * frequencies
