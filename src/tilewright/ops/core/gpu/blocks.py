"""The part of a matrix that a program of a row operation computes, in Triton."""

from typing import NamedTuple


class RowBlock(NamedTuple):
    """C: elements of a row. BM: rows of a program. BC: columns of a program, a power of two."""

    C: int
    BM: int
    BC: int
