"""Parameters of the tile kernels of attention. `Block` and `Form` are compile-time constants.

Triton 3.6 cannot read a field named `values` or `type` of a record, so no record here has one.
"""

from typing import Any, NamedTuple


class Block(NamedTuple):
    """BM: queries of a tile. BN: keys of a block. D: size of a head. DP: D up to a power of two that matrix units
    take. heads: heads of a program."""

    BM: int
    BN: int
    D: int
    DP: int
    heads: int = 1


class Form(NamedTuple):
    """causal: a query attends to no later position. short: no sequence is longer than BN. ahead: `step.step_plain`
    loads the next block before it absorbs one; this changes no bit."""

    causal: bool
    short: bool
    ahead: bool = False


class Cache(NamedTuple):
    """Pointers to keys and values (slots, heads, length, D)."""

    k: Any
    v: Any


class New(NamedTuple):
    """Pointers to rows of new keys and values, heads * D elements each."""

    k: Any
    v: Any


class Rows(NamedTuple):
    """Pointers to rows of queries, new keys and new values, heads * D elements each."""

    q: Any
    k: Any
    v: Any


class Targets(NamedTuple):
    """Pointers to the slot of each row, -1 for none, and to the position of each row in its slot."""

    slots: Any
    positions: Any


class CacheSizes(NamedTuple):
    """heads, length: extents of the cache. q_stride, out_stride: elements from one row to the next."""

    heads: int
    length: int
    q_stride: int
    out_stride: int


class AppendSizes(NamedTuple):
    """heads, length: extents of the cache. k_stride, v_stride: elements from one row to the next."""

    heads: int
    length: int
    k_stride: int
    v_stride: int


class RowSizes(NamedTuple):
    """heads, length: extents of the cache. The strides: elements from one row to the next."""

    heads: int
    length: int
    q_stride: int
    k_stride: int
    v_stride: int
    out_stride: int


class LongForm(NamedTuple):
    """causal: a query attends to no later position. cached: keys and values are in the cache, not in the batch's
    rows (Hopper)."""

    causal: bool
    cached: bool


class TileSizes(NamedTuple):
    """heads, length: extents of the cache. out_stride: elements from one row to the next. tiles: how many there
    are, times heads (Hopper)."""

    heads: int
    length: int
    out_stride: int
    tiles: int


class Buffers(NamedTuple):
    """Shared memory of a program on Hopper. q_tiles: 64 queries of each warpgroup, for two tiles. k_tiles, v_tiles:
    blocks of keys and of values. q_full, k_full, v_full: barriers that complete when these are loaded. q_empty, empty:
    when both warpgroups have read the queries, or a block of keys and of values."""

    q_tiles: Any
    k_tiles: Any
    v_tiles: Any
    q_full: Any
    k_full: Any
    v_full: Any
    q_empty: Any
    empty: Any


class Queries(NamedTuple):
    """q: (64, D) queries of a warpgroup in shared memory (Hopper). start: position of the first. scale: of scores,
    times log2(e)."""

    q: Any
    start: Any
    scale: Any


class Keys(NamedTuple):
    """The keys of a warpgroup start at position 0. whole: all its queries attend to the keys before this position.
    last: position after the last key that it attends to. end: the same of its whole tile."""

    whole: Any
    last: Any
    end: Any
