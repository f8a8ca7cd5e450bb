"""What a matmul_argmax rung is handed."""

from dataclasses import dataclass

import numpy as np

from tilewright.ops.gemm.operands import Packed

# rung of matmul that laid the weights out -> kind of product that reads them, see `gemm.cpu.loops.PRODUCTS`
KINDS = {"cpu.packed": "float32", "cpu.widened": "mixed", "cpu.dot_pairs": "dot_pairs", "cpu.amx": "amx"}


@dataclass(frozen=True, eq=False)
class Screen:
    """Weights in 8 bits, and what that loses: see cpu/screened.py.

    panels: words of four int8 along K, [N / NR][words][NR], as float32. columns float32 (4, padded N): step s, offset
    of the dot product (an int32 seen as float32), norm of s q, bound of the loss. rows: float32
    (N, K), the weights themselves, a row a column of b.
    """

    panels: np.ndarray
    columns: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class Prepared:
    """Weights as one rung wants them: those of `matmul`, and a screen where the rung has one."""

    rung: str
    weights: Packed
    screen: Screen | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that the screen adds to the weights."""
        return 0 if self.screen is None else self.screen.panels.nbytes + self.screen.columns.nbytes
