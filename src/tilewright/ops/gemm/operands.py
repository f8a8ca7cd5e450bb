"""The arguments of a product: checked, two-dimensional, without None."""

from dataclasses import dataclass

import numpy as np

ROUNDED_DEPTH = 1536  # elements along K in a block of a bfloat16 kernel: partial sums of more would be rounded in out


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights as one rung wants them: what `matmul.prepare` gives and `matmul` takes in place of b.

    rung: whose layout it is. K, N: of the matrix. dtype: the accuracy class. data: the plain float32 (K, N) array for
    rungs that pack nothing, else panels: float32, or 32-bit words of two bfloat16 seen as float32.
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
    """The left operand: (?, K) `array`, of which row i of the product is `array[index[i]]`; index None: all in order.

    It is float32, or bfloat16 for rungs of that class.
    """

    array: np.ndarray
    index: np.ndarray | None

    @property
    def count(self) -> int:
        """M."""
        return len(self.array) if self.index is None else len(self.index)

    def plain(self) -> np.ndarray:
        """(M, K), copied if rows are picked."""
        return self.array if self.index is None else self.array[self.index]

    def addresses(self) -> tuple[np.ndarray, np.ndarray, int]:
        """(origin, element offset of each row, step along a row); see `addresses`."""
        origin, starts, step = addresses(self.array)
        return origin, starts if self.index is None else starts[self.index], step


def addresses(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """(origin, int64 element offset of every row, step along a row) of a float32 matrix with any strides of whole
    elements.

    Origin is a view that begins at matrix[0, 0], from which kernels address the rest.
    """
    row, step = (stride // matrix.itemsize for stride in matrix.strides)
    if step == 1 and len(matrix):
        return matrix[0], np.arange(len(matrix), dtype=np.int64) * row, 1  # a fifth of as_strided's five microseconds
    origin = np.lib.stride_tricks.as_strided(matrix, (1,), (matrix.itemsize,), writeable=False)
    return origin, np.arange(matrix.shape[0], dtype=np.int64) * row, step


@dataclass(frozen=True, eq=False)
class Epilogue:
    """What follows the sum.

    bias: float32 (N,) or empty; residual: float32 (M, N), any strides, or empty; activation: a name.
    """

    bias: np.ndarray
    residual: np.ndarray
    activation: str | None
