"""The arguments of a product: checked, two-dimensional, without None."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

PEAK, SECTOR = 32, 8  # columns of a product whose largest element may be stored; float32 elements in 32 bytes
FEW = 1024  # rows whose offsets are kept for the next product
ROUNDED_DEPTH = 1536  # elements along K in a block of a bfloat16 kernel: partial sums of more would be rounded in out


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights in the layout of one rung: `matmul.prepare` returns it and `matmul` takes it instead of b.

    rung: the rung that reads this layout. K, N: sizes of the matrix. dtype: the accuracy class. data: the plain float32
    (K, N) array for rungs that pack nothing, otherwise panels: float32, or words of two bfloat16 as float32.
    """

    rung: str
    K: int
    N: int
    dtype: str
    data: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes occupied."""
        return self.data.nbytes


@dataclass(frozen=True, eq=False)
class Rows:
    """The left operand: row i is `array[index[i]]`, or `array[i]` where index is None.

    array: (rows, K) float32, or bfloat16 for rungs of that class. index: int64 (M,).
    """

    array: np.ndarray
    index: np.ndarray | None

    @property
    def count(self) -> int:
        """M."""
        return len(self.array) if self.index is None else len(self.index)

    def plain(self) -> np.ndarray:
        """(M, K); a copy if there is an index."""
        return self.array if self.index is None else self.array[self.index]

    def addresses(self) -> tuple[np.ndarray, np.ndarray, int]:
        """(origin, offset of each row, step along a row); see `addresses`."""
        origin, starts, step = addresses(self.array)
        return origin, starts if self.index is None else starts[self.index], step


def peaks_of(N: int) -> int:
    """Length of a row of peaks for N columns: one per PEAK columns, rounded up to 32 bytes, a sector of a GPU's memory.
    The extra elements are undefined."""
    return -(-N // (PEAK * SECTOR)) * SECTOR


def addresses(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """(origin, int64 offset of each row, step along a row), in elements, of a float32 matrix with any strides.

    origin: a view that begins at matrix[0, 0]; kernels add offsets to its address.
    """
    row, step = (stride // matrix.itemsize for stride in matrix.strides)
    if step == 1 and len(matrix):
        return matrix[0, :], row_starts(len(matrix), row), 1  # a fifth of as_strided's five microseconds
    origin = np.lib.stride_tricks.as_strided(matrix, (1,), (matrix.itemsize,), writeable=False)
    return origin, row_starts(len(matrix), row), step


def row_starts(count: int, row: int) -> np.ndarray:
    """int64 (count,): the offset of each row. Do not write to it: other products read the same array."""
    return _few_starts(count, row) if count <= FEW else np.arange(count, dtype=np.int64) * row


@lru_cache(maxsize=64)
def _few_starts(count: int, row: int) -> np.ndarray:
    """The same array each time, so that a launch with it can be recorded."""
    return np.arange(count, dtype=np.int64) * row


@dataclass(frozen=True, eq=False)
class Epilogue:
    """bias (N,) and residual (M, N), any strides, both float32 and added to the sums, or empty; activation: a name.
    peaks: None, or float32 (M, peaks_of(N)) for the largest result of each PEAK columns, NaN if one is not finite. Only
    the tile rungs store them, and with no residual."""

    bias: np.ndarray
    residual: np.ndarray
    activation: str | None
    peaks: Any = None
