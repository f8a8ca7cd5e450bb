"""SIMT kernels of matmul_argmax for NVIDIA GPUs, in numba-cuda: how the rows of a written product are looked through.

Of two products that are equal the one further left is kept, so the order in which they meet does not show. A NaN is
kept in any case: the value then tells that the row has none.
"""
