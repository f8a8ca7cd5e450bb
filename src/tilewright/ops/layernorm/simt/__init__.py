"""SIMT kernels of layernorm, in numba-cuda."""
