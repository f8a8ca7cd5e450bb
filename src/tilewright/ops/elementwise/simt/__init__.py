"""SIMT kernels of the elementwise functions, in numba-cuda."""
