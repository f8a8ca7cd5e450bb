"""The part of a matrix that one Triton program of a row operation computes."""

from typing import NamedTuple


class RowBlock(NamedTuple):
    """C: elements per row. BM: rows per program. BC: columns per program, a power of two."""

    C: int
    BM: int
    BC: int
