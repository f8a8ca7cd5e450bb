"""SIMT kernels of layernorm, in numba-cuda: x and out (rows, C), weight and bias (C,), all float32 and
contiguous; out may be x.

A sum's order follows from the rung and the row's length alone.
"""
