"""SIMT kernels of softmax, in numba-cuda: x and out (rows, C), float32, contiguous; out may be x.

A sum's order follows from the rung and the row's length alone.
"""
