"""Which phases are one product in each form of the weights for the tile kernels, and how deep a block is.

A form is "phases", "columns", "boxes", "blocks" or "rolling": see `weights`. This file needs neither torch nor Triton,
because plans on machines without them count the bytes of the weights.
"""

from tilewright.ops.conv_transpose2d.operands import Axis

LINE = 128  # bytes of a tile's row: the longest that a bulk copy lays out without bank conflicts
LEAST = 16  # elements that a matrix unit takes along each axis
WIDE = 128  # columns of a tile: adjacent phases that fit in it are one product
WASTE = 1.25  # products that such a product may take per product of its taps; the rest are by zeros
POSITIONS = 64  # of a tile of one product for all phases in float32: measured on an H100, docs/lab/conv_transpose2d.md
SMALL = 256  # positions of an image up to which a tile holds one position of many images
GROUP = 2  # positions of a block along each axis, for `rolling` across only
PIXELS = 4  # columns of x that such a block reads: GROUP positions with windows of up to 3


def together(form: str, columns: Axis, O: int) -> tuple[bool, bool]:
    """(all phases down are one product, all phases across are). columns: the axis across."""
    few = form in ("columns", "blocks", "rolling")
    adjacent = form == "boxes" and columns.stride * O <= WIDE
    return few, few or (adjacent and columns.window[1] * columns.stride <= WASTE * columns.K)


def block_depth(C: int, dtype: str) -> int:
    """BK: a LINE of elements, or fewer that hold C channels."""
    return min(LINE // (4 if dtype == "tf32" else 2), max(LEAST, 1 << (C - 1).bit_length()))


def line_depth(dtype: str) -> int:
    """Channels of x in a LINE; float32 is split into limbs only after it is loaded."""
    return LINE // (2 if dtype.endswith("16") else 4)


def rolling_columns(KH: int, O: int) -> int:
    """Columns of the product in `rolling` at stride 2: a power of two."""
    return 1 << (max(KH, 2) * 2 * GROUP * O - 1).bit_length()
