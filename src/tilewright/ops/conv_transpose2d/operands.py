"""What a conv_transpose2d rung is handed: checked, without a None in it, and seen from the output.

Along one axis, output r = stride * j + i sums x[j + d] * weights[k] over the (d, k) that `Axis.taps(i)` lists: output
phase i is an ordinary convolution of x, with a kernel of its own of every stride-th tap, and its results lie a stride
apart. The polyphase view is Crochiere and Rabiner's, "Multirate Digital Signal Processing", 1983.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Axis:
    """K taps; inputs land `stride` apart in the full result, of which `first` and `last` numbers are cropped off."""

    K: int
    stride: int
    first: int
    last: int

    def size(self, n: int) -> int:
        """Outputs for n inputs; below 1 if all of them are cropped off."""
        return (n - 1) * self.stride + self.K - self.first - self.last

    def taps(self, phase: int) -> tuple[tuple[int, int], ...]:
        """(d, k) of an output phase, ascending in d."""
        whole, k = divmod(phase + self.first, self.stride)
        count = -(-(self.K - k) // self.stride)
        return tuple((whole - u, k + u * self.stride) for u in range(count - 1, -1, -1))

    @cached_property
    def phases(self) -> tuple[int, ...]:
        """The output phases that have taps; a kernel shorter than the stride leaves some without."""
        return tuple(sorted((k - self.first) % self.stride for k in range(min(self.K, self.stride))))

    @cached_property
    def window(self) -> tuple[int, int]:
        """(least d, number of d) over all phases: what an output group reads of x."""
        ends = [(self.taps(i)[0][0], self.taps(i)[-1][0]) for i in self.phases]
        least = min(low for low, _ in ends)
        return least, max(high for _, high in ends) - least + 1

    def positions(self, n: int) -> int:
        """Values of j: groups of `stride` outputs, the last perhaps in part."""
        return -(-self.size(n) // self.stride)


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights as one rung wants them: what `conv_transpose2d.prepare` gives and `conv_transpose2d` takes for weights.

    rung: whose layout it is. O, C: output and input channels. rows, columns: the two axes. dtype: the accuracy class.
    data: the plain float32 (KH, KW, O, C) array for rungs that pack nothing, else the rung's own.
    """

    rung: str
    O: int
    C: int
    rows: Axis
    columns: Axis
    dtype: str
    data: Any

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Those of data that a caller may own."""
        return (self.data,) if isinstance(self.data, np.ndarray) else ()


@dataclass(frozen=True, eq=False)
class Epilogue:
    """What follows the sum. bias: float32 (O,) or empty; activation: a name or None."""

    bias: np.ndarray
    activation: str | None
