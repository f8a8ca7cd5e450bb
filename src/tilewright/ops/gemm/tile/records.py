"""Parameters of the tile products. Triton and Gluon take `Block` and `Form` as one compile-time constant each.

Triton 3.6 cannot read a field named `values` or `type` of a record of tensors, so no record here has one.
"""

from typing import Any, NamedTuple

HALF_ROWS = 64  # rows of a tile that a warpgroup computes on Hopper: the rows of one of its instructions


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
    "stores": threads store it; out and the residual are pointers. "bulk_copy": out is a descriptor. "moving_warp"
    (Hopper): out and the residual are descriptors of boxes 128 bytes wide. "parts": the sum of each block of K is
    stored by itself (`hopper_few`). activation: a name that `epilogue.activate` knows, or None. stages: blocks of K in
    flight (Hopper).
    """

    products: int
    end: str
    activation: str | None
    stages: int


class Sizes(NamedTuple):
    """out is (M, N), K is summed over. stride: elements from a row of out to the next; None if nothing is written."""

    M: Any
    N: Any
    K: Any
    stride: Any = None


class Extras(NamedTuple):
    """Pointers, or None. bias (N,), residual (M, N): what is added to the sums. peaks: the largest result of each PEAK
    columns is stored there, see `operands.Epilogue`."""

    bias: Any
    residual: Any
    peaks: Any


class Stages(NamedTuple):
    """Buffers of blocks of K in shared memory (Hopper).

    a_tiles: one box of HALF_ROWS rows for each warpgroup, stage and limb or part of K. b_tiles: one box for each stage
    and limb or part of K. full: barriers that complete when both loading warps have announced their bytes and all of
    these have arrived. empty: barriers that count the warpgroups that have read a stage.
    """

    a_tiles: Any
    b_tiles: Any
    full: Any
    empty: Any


class Exchange(NamedTuple):
    """Buffers for results in shared memory (Hopper). loaded, finished: a barrier for each buffer, which completes once
    the residual is in it, or the results; None for bulk copies."""

    buffers: Any
    loaded: Any
    finished: Any
