"""Compile-time parameters of the tile products. Triton and Gluon take each record as one constexpr argument.

Triton 3.6 cannot read a field named `values` or `type` of a record of tensors, so no record here has one.
"""

from typing import NamedTuple


class Block(NamedTuple):
    """The tile of out that a program computes at a time.

    BM, BN: rows and columns of the tile. BK: block of K that is loaded at a time. group: tiles down before the next
    column of tiles.
    """

    BM: int
    BN: int
    BK: int
    group: int


class Form(NamedTuple):
    """What a product does besides its sums.

    products: 1 for operands as they are, 3 or 4 products of bfloat16 limbs for float32. end: how a tile is written.
    "alone": out and the residual are pointers. "bulk": out is a descriptor, written by bulk copies. "moved" (Hopper):
    out and the residual are descriptors of boxes 128 bytes wide. "best" (Hopper): `matmul_argmax` keeps the largest sum
    of each row. activation: a name that `epilogue.activate` knows, or None. stages: tiles in flight (Hopper).
    """

    products: int
    end: str
    activation: str | None
    stages: int
