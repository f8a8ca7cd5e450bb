"""SIMT kernels of pool, in numba-cuda."""
