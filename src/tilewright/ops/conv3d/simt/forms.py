"""Compile-time parameters of the marching kernels."""

import math
from dataclasses import dataclass

QUAD = 4  # elements in 16 bytes, and outputs of a thread of `march` along x
PAIR = 2 * QUAD  # adjacent outputs along x that a thread of `separable` convolves at a time
SIDE = 4  # threads in one row, of the eight threads whose 16-byte accesses form one shared-memory transaction


@dataclass(frozen=True)
class Form:
    """Compile-time parameters of a kernel whose blocks march along z, plane by plane.

    sizes: (KD, KH, KW) of the weights. lead: elements of a window's first quad that are before the window. rows: rows
    of outputs per thread. lanes: threads along x. threads: threads per block. registers: limit of registers per thread.
    adds: True if the kernel adds its results to out, False if it overwrites out.
    """

    sizes: tuple[int, int, int]
    lead: int
    rows: int
    lanes: int
    threads: int
    registers: int
    adds: bool = False

    @property
    def tile(self) -> tuple[int, int]:
        """(rows, columns) of the outputs of a block in one plane."""
        return self.threads // self.lanes * self.rows, self.lanes * QUAD

    @property
    def quads(self) -> int:
        """Quads that cover one row of all windows of a thread."""
        return -(-(self.lead + QUAD + self.sizes[2] - 1) // QUAD)

    @property
    def across(self) -> int:
        """Quads in one row of the tile, halo included."""
        return self.lanes + self.quads - 1

    @property
    def height(self) -> int:
        """Rows of the tile, halo included."""
        return self.tile[0] + self.sizes[1] - 1

    @property
    def shares(self) -> int:
        """Quads of the tile that each thread loads, rounded up."""
        return -(-self.height * self.across // self.threads)

    @property
    def work(self) -> int:
        """Multiply-adds of a thread in one plane."""
        return self.rows * QUAD * math.prod(self.sizes)

    @property
    def sums(self) -> int:
        """Sums of a thread: KD for each of its outputs in one plane."""
        return self.sizes[0] * self.rows * QUAD


@dataclass(frozen=True)
class ColumnForm(Form):
    """As `Form`. rows: outputs of one column per thread, an even number. lanes: quads of a row. stages: planes in
    shared memory; all but one are in flight. adds is always False."""

    stages: int = 3

    @property
    def tile(self) -> tuple[int, int]:
        """(rows, columns) of the outputs of a block in one plane."""
        return self.threads // (self.lanes * QUAD) * self.rows, self.lanes * QUAD

    @property
    def quads(self) -> int:
        """Quads that cover the windows of a pair of quads."""
        return -(-(self.lead + PAIR + self.sizes[2] - 1) // QUAD)

    @property
    def across(self) -> int:
        """Quads in one row of the tile, halo included: an odd number, so that two rows begin in different banks."""
        return (self.lanes + -(-(self.lead + self.sizes[2] - 1) // QUAD)) | 1

    @property
    def stage(self) -> int:
        """Elements of the tile, halo included."""
        return self.height * self.across * QUAD

    @property
    def work(self) -> int:
        """Multiply-adds of a thread in one plane."""
        KD, KH, KW = self.sizes
        return self.rows * (KD + KH) + PAIR * KW

    @property
    def sums(self) -> int:
        """Sums of a thread: KD for each of its outputs in one plane."""
        return self.sizes[0] * self.rows

    @property
    def sides(self) -> int:
        """Groups of SIDE pairs in one row of the tile's outputs."""
        return self.tile[1] // PAIR // SIDE

    @property
    def pairs(self) -> int:
        """Pairs of quads that each thread convolves along x, rounded up. Rows are taken two at a time."""
        return -(-((self.height + 1) // 2 * 2 * SIDE * self.sides) // self.threads)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return 4 * (self.stages * self.stage + self.height * self.tile[1])
