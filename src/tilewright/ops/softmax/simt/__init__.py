"""SIMT kernels of softmax, in numba-cuda."""
