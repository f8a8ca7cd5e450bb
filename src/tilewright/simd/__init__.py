"""Explicit vectors for Numba kernels: a small library of its own, without a line that knows a matrix or a model.

`vectors` float32 vectors of any width; `blocks` register blocks for micro-kernels; `bfloat16` words and pair products;
`amx` tiles; `kernel` the decorator; `cache` compiled code on disk. README.md in this folder has the table of functions.
Importing this package imports Numba (a third of a second): import it where kernels are, not at a program's start.
"""

from tilewright.simd.bfloat16 import (
    block_dot_pair,
    block_gather_converted,
    block_gather_rounded,
    block_widened_pair,
    load_remainder,
    load_rounded,
    load_widened,
    pair_remainder,
    pair_rounded,
    store_rounded,
)
from tilewright.simd.blocks import (
    block_add,
    block_gather,
    block_maximum,
    block_rank1,
    block_store,
    block_transpose,
    block_zeros,
)
from tilewright.simd.kernel import Kernel, inline, kernel
from tilewright.simd.types import CONTIGUOUS, INDICES, INPUT, INPUT_2D, MATRIX, OUTPUT, OUTPUT_2D, PLAN
from tilewright.simd.vectors import (
    add,
    broadcast,
    divide,
    fetch,
    fetch_add,
    fma,
    load,
    load_first,
    maximum,
    minimum,
    multiply,
    prefetch,
    reduce_add,
    reduce_max,
    select_greater,
    splat,
    store,
    store_first,
    subtract,
    zeros,
)

__all__ = [
    "CONTIGUOUS", "INDICES", "INPUT", "INPUT_2D", "MATRIX", "OUTPUT", "OUTPUT_2D", "PLAN", "Kernel", "add", "block_add", "block_dot_pair", "block_gather", "block_gather_converted", "block_gather_rounded", "block_maximum", "block_rank1", "block_store", "block_transpose",
    "block_widened_pair", "block_zeros", "broadcast", "divide", "fetch", "fetch_add", "fma", "inline", "kernel", "load",
    "load_first", "load_remainder", "load_rounded", "load_widened", "maximum", "minimum", "multiply", "pair_remainder", "pair_rounded", "prefetch", "reduce_add",
    "reduce_max", "select_greater", "splat", "store", "store_first", "store_rounded", "subtract", "zeros",
]  # fmt: skip
