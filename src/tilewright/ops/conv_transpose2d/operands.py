"""Arguments of a conv_transpose2d rung, checked and without a None, and the geometry of one axis.

Along one axis, output r = stride * j + i is the sum of x[j + d] * weights[k] over the pairs (d, k) of `Axis.taps(i)`.
All outputs of phase i use the same taps (elements of the filter), one stride apart. So they are an ordinary convolution
of x with a smaller kernel. j is called a position: it has one output in every phase. This polyphase view is Crochiere
and Rabiner's, "Multirate Digital Signal Processing", 1983.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Axis:
    """Rows or columns. K: taps of the kernel. stride: outputs between the kernels of neighbouring inputs. first, last:
    outputs cropped off either end of the full result."""

    K: int
    stride: int
    first: int
    last: int

    def size(self, n: int) -> int:
        """Outputs for n inputs; below 1 if the crop removes all of them."""
        return (n - 1) * self.stride + self.K - self.first - self.last

    def taps(self, phase: int) -> tuple[tuple[int, int], ...]:
        """(d, k) of an output phase, ascending in d."""
        whole, k = divmod(phase + self.first, self.stride)
        count = -(-(self.K - k) // self.stride)
        return tuple((whole - u, k + u * self.stride) for u in range(count - 1, -1, -1))

    @cached_property
    def phases(self) -> tuple[int, ...]:
        """The output phases that have taps. With a kernel shorter than the stride, some have none."""
        return tuple(sorted((k - self.first) % self.stride for k in range(min(self.K, self.stride))))

    @cached_property
    def window(self) -> tuple[int, int]:
        """(smallest d, number of d) over all phases: the inputs that a position reads."""
        ends = [(self.taps(i)[0][0], self.taps(i)[-1][0]) for i in self.phases]
        least = min(low for low, _ in ends)
        return least, max(high for _, high in ends) - least + 1

    def positions(self, n: int) -> int:
        """Positions for n inputs: groups of `stride` outputs, the last one perhaps incomplete."""
        return -(-self.size(n) // self.stride)


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights in the layout of one rung: what `prepare` returns, and `conv_transpose2d` takes as weights.

    rung: its name. O, C: output and input channels. rows, columns: the two axes. dtype: the accuracy class.
    data: the plain float32 (KH, KW, O, C) array for rungs that pack nothing, otherwise the rung's own. takes_limbs,
    writes_limbs: whether `conv_transpose2d` accepts limbs as x, or as out.
    """

    rung: str
    O: int
    C: int
    rows: Axis
    columns: Axis
    dtype: str
    data: Any
    takes_limbs: bool = False
    writes_limbs: bool = False

    def arrays(self) -> tuple:
        """Arrays that may be the caller's own memory: data, where the rung packs nothing."""
        return (self.data,) if hasattr(self.data, "shape") else ()


@dataclass(frozen=True, eq=False)
class Epilogue:
    """What follows the sum. bias: (O,) or empty, a float32 array or a tensor. activation: a name or None."""

    bias: Any
    activation: str | None
