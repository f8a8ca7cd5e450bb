"""SIMT kernels of batchnorm, in numba-cuda: x and out (rows, C), float32, contiguous; out may be x."""
