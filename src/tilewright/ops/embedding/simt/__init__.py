"""SIMT kernels of embedding, in numba-cuda."""
