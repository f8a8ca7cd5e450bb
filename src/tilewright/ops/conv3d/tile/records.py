"""Parameters of the tile kernels of conv3d. The blocks and `Sizes` are compile-time constants.

Triton 3.6 cannot read a field named `values` or `type` of a record, so no record here has one.
"""

from typing import NamedTuple


class Border(NamedTuple):
    """above, before, left: elements from a window's start to its output, along planes, rows and columns. fill: the
    element outside the volume, in modes that use one."""

    above: int
    before: int
    left: int
    fill: float


class Sizes(NamedTuple):
    """Extents of a kernel along planes, rows and columns."""

    KD: int
    KH: int
    KW: int


class DeepSizes(NamedTuple):
    """Extents of a kernel, and its input channels rounded up to whole blocks."""

    KD: int
    KH: int
    KW: int
    deep: int


class Marched(NamedTuple):
    """D, H, W: extents of x. planes, height, width: extents of out. chunk: planes of out that a program computes."""

    D: int
    H: int
    W: int
    planes: int
    height: int
    width: int
    chunk: int


class Product(NamedTuple):
    """D, H, W: extents of a volume of x. O: output channels. height, width: rows and columns of out. count: outputs per
    output channel. taps: input channels times taps of the kernel. depth: taps rounded up to whole blocks."""

    D: int
    H: int
    W: int
    O: int
    height: int
    width: int
    count: int
    taps: int
    depth: int


class Volumes(NamedTuple):
    """C, D, H, W: extents of x. O: output channels. height, width: rows and columns of out. count: outputs per output
    channel."""

    C: int
    D: int
    H: int
    W: int
    O: int
    height: int
    width: int
    count: int


class Line(NamedTuple):
    """n, m: elements along the axis, of x and of out. inner: elements inside it. K: taps."""

    n: int
    m: int
    inner: int
    K: int


class Plane(NamedTuple):
    """Outputs of a program: rows and columns of a plane, or positions along an axis and inside it."""

    rows: int
    columns: int


class Block(NamedTuple):
    """BM: outputs. BN: output channels. BK: depth that is loaded at a time."""

    BM: int
    BN: int
    BK: int


class TapBlock(NamedTuple):
    """BM: outputs. BN: output channels. BC: input channels that are loaded at a time. long: x has so many elements that
    offsets take 64 bits. ragged: BC does not divide the input channels."""

    BM: int
    BN: int
    BC: int
    long: bool
    ragged: bool
