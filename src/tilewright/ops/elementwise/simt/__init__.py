"""SIMT kernels of the elementwise functions, in numba-cuda: x and out (N,), float32, contiguous."""
