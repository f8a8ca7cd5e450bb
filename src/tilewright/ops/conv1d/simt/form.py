"""Compile-time parameters of the kernel `rows`, and their choice. Needs neither a GPU nor numba-cuda."""

from dataclasses import dataclass

from tilewright.errors import Refused
from tilewright.ops.conv1d.operands import Window
from tilewright.ops.core.gpu.limits import check_block

QUAD = 4  # elements in 16 bytes
THREADS = 128  # per block: four warps, each 8 rows by 4 groups of filters
STRAIGHT = 1400  # multiply-adds in the unrolled loop: with more, the instruction cache is too small
DEEPEST = 8  # channels per step, the maximum
COLUMNS = 128  # filters per block of `rows`, the maximum: weights are padded to a multiple
MOST_POSITIONS = 16  # of a thread of `rows`
MOST_SUMS = 128  # of a thread of `rows`, half of its registers
LONGEST_ROW = 32  # elements of x that a thread of `rows` has in registers
BEYOND = 32  # rows of weights that a block may load past the last


@dataclass(frozen=True)
class Form:
    """Compile-time parameters of `rows`.

    filters, positions: outputs of a thread. rows: pieces of samples per block. taps, stride, dilation: of the window
    that slides over a thread's row of x. K: taps of the weights. If `taps` is 1 and K is not, each tap is a channel of
    its own, whose row holds only the elements under that tap. aligned: rows of x start at multiples of 16 bytes.
    """

    filters: int
    positions: int
    rows: int
    taps: int
    stride: int
    dilation: int
    K: int
    aligned: bool

    @property
    def split(self) -> int:
        """Channels that the kernel makes of one: K if each tap is a channel, otherwise 1."""
        return self.K // self.taps

    @property
    def groups(self) -> int:
        """Groups of filters per block, one per thread."""
        return THREADS // self.rows

    @property
    def width(self) -> int:
        """Filters per block."""
        return self.groups * self.filters

    @property
    def quads(self) -> int:
        """Quads in a thread's row of x."""
        return -(-((self.positions - 1) * self.stride + (self.taps - 1) * self.dilation + 1) // QUAD)

    @property
    def pitch(self) -> int:
        """Elements from row to row in shared memory: an odd number of quads, so eight rows have no bank conflicts."""
        return (self.quads | 1) * QUAD

    @property
    def depth(self) -> int:
        """Channels per step, a power of two."""
        most = max(1, STRAIGHT // (self.filters * self.positions * self.taps))
        return min(DEEPEST, 1 << (most.bit_length() - 1))

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        return self.filters * self.positions


def form_for(L: int, K: int, window: Window, whole_quads: bool, filters: int, rows_per_block: int) -> Form:
    """The form of `rows` for x (B, C, L): as many positions per thread as its registers hold, in equal pieces.

    whole_quads: x starts at a multiple of 16 bytes. The window slides over a row in registers if that has at most
    LONGEST_ROW elements; otherwise each tap is a channel. Raises Refused for options that cannot run.
    """
    options = {"filters": filters, "rows_per_block": rows_per_block}
    check_block(options)
    given = ", ".join(f"{name}={value}" for name, value in options.items())
    if filters % QUAD or filters > MOST_SUMS:
        raise Refused(f"{given}: filters must be a multiple of {QUAD}, at most {MOST_SUMS}")
    if rows_per_block not in (8, 16, 32):
        raise Refused(f"{given}: rows_per_block must be 8, 16 or 32")
    if (width := THREADS // rows_per_block * filters) > COLUMNS:
        raise Refused(f"{given}: a block would have {width} filters; the maximum is {COLUMNS}")
    P = window.positions(L, K)
    pieces = -(-P // min(MOST_POSITIONS, MOST_SUMS // filters))
    positions = -(-P // pieces)
    if (positions - 1) * window.stride + window.span(K) > LONGEST_ROW:
        return Form(filters, positions, rows_per_block, 1, 1, 1, K, aligned=False)
    starts = (window.padding, L, positions * window.stride if pieces > 1 else 0)
    aligned = whole_quads and not any(start % QUAD for start in starts)
    return Form(filters, positions, rows_per_block, K, window.stride, window.dilation, K, aligned)
