"""The weights of matmul_argmax, prepared for a rung."""

from dataclasses import dataclass

import numpy as np

from tilewright.ops.gemm.operands import Packed

# rung of matmul whose layout the weights have -> kind of product that reads it, see `gemm.cpu.loops.PRODUCTS`
KINDS = {"cpu.packed": "float32", "cpu.widened": "widen_b", "cpu.dot_pairs": "dot_pairs", "cpu.amx": "amx"}


@dataclass(frozen=True, eq=False)
class Screen:
    """Weights in 8 bits and bounds of their rounding error, see cpu/screened.py.

    panels: words of four int8 along K, [N / NR][words][NR], as float32. columns: float32 (4, padded N), see
    `screened.ColumnRows`; its offsets are int32 bits. rows: float32 (N, K), the weights, one row per column of b.
    """

    panels: np.ndarray
    columns: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class Prepared:
    """Weights in the layout of one rung: `weights` for matmul, and a screen if the rung has one."""

    rung: str
    weights: Packed
    screen: Screen | None = None

    @property
    def kind(self) -> str:
        """The kind of product of matmul's rung, a value of KINDS; "float32" for every rung of that class."""
        return "float32" if self.weights.dtype == "float32" else KINDS[self.weights.rung]

    @property
    def nbytes(self) -> int:
        """Bytes of the screen."""
        return 0 if self.screen is None else self.screen.panels.nbytes + self.screen.columns.nbytes
