"""Explicit vectors for Numba kernels: a small independent library that knows nothing about matrices or models.

`vectors`: float32 vectors of any width. `blocks`: register blocks for micro-kernels. `bfloat16`: words and products of
pairs. `amx`: tiles. `atomics`: values that threads share. `kernel`: the decorator. `cache`: compiled code on disk.
`instruction`: how all of them are declared. README.md in this folder has the table of functions.

Importing this package imports Numba (a third of a second). So import it where kernels are, and not at the start of a
program.
"""

# isort: off
# fmt: off
from tilewright.simd.atomics import compare_exchange, draw, exchange, fetch_add, load_acquire, relax, store_release
from tilewright.simd.bfloat16 import (
    block_dot_pair, block_dot_row_pairs, block_gather_converted, block_gather_rounded, block_mixed_pair,
    block_nearest_bfloat16, block_put, block_widened_pair, load_converted, load_remainder, load_rounded, pair_remainder,
    pair_rounded, put, put_first, scatter, store_converted, store_rounded,
)
from tilewright.simd.blocks import (
    block_add, block_dot_rows, block_gather, block_load, block_maximum, block_rank1, block_rank1_rows,
    block_scale_rows, block_store, block_sum, block_transpose, block_zeros,
)
from tilewright.simd.doubles import exp_double, lanes_at_least, load_double, lowest_bit, reduce_add_double, splat_double
from tilewright.simd.functions import exp, gelu_exact, gelu_tanh, gelu_tanh_bfloat16, tanh
from tilewright.simd.halves import (
    block_rank1_first, block_rank1_second, first_halves, join_firsts, join_halves, load_halves, second_halves,
)
from tilewright.simd.integers import block_dot_quad, block_dot_signed_quad, integers_less
from tilewright.simd.kernel import Kernel, inline, kernel
from tilewright.simd.types import (
    CONTIGUOUS, COUNTERS, INDICES, INPUT, INPUT_2D, MATRIX, OUTPUT, OUTPUT_2D, ROUNDED_2D, TASKS, record,
)
from tilewright.simd.vectors import (
    absolute, add, broadcast, copy, copy_sign, divide, fetch, fill, fma, load, load_first, maximum, multiply,
    prefetch, prefetch_far, prefetch_write, reduce_add, reduce_max, round_even, scale, select_greater, splat, store,
    store_first, subtract, zeros,
)

__all__ = [  # noqa: RUF022 - in the order of the imports
    "compare_exchange", "draw", "exchange", "fetch_add", "load_acquire", "relax", "store_release",
    "block_dot_pair", "block_dot_row_pairs", "block_gather_converted", "block_gather_rounded", "block_mixed_pair",
    "block_nearest_bfloat16", "block_put", "block_widened_pair", "load_converted", "load_remainder", "load_rounded",
    "pair_remainder", "pair_rounded", "put", "put_first", "scatter", "store_converted", "store_rounded",
    "block_add", "block_dot_rows", "block_gather", "block_load", "block_maximum", "block_rank1", "block_rank1_rows",
    "block_scale_rows", "block_store", "block_sum", "block_transpose", "block_zeros",
    "exp_double", "lanes_at_least", "load_double", "lowest_bit", "reduce_add_double", "splat_double",
    "exp", "gelu_exact", "gelu_tanh", "gelu_tanh_bfloat16", "tanh",
    "block_rank1_first", "block_rank1_second", "first_halves", "join_firsts", "join_halves", "load_halves",
    "second_halves",
    "block_dot_quad", "block_dot_signed_quad", "integers_less",
    "Kernel", "inline", "kernel",
    "CONTIGUOUS", "COUNTERS", "INDICES", "INPUT", "INPUT_2D", "MATRIX", "OUTPUT", "OUTPUT_2D", "ROUNDED_2D", "TASKS",
    "record",
    "absolute", "add", "broadcast", "copy", "copy_sign", "divide", "fetch", "fill", "fma", "load", "load_first",
    "maximum", "multiply", "prefetch", "prefetch_far", "prefetch_write", "reduce_add", "reduce_max", "round_even",
    "scale", "select_greater", "splat", "store", "store_first", "subtract", "zeros",
]
