"""SIMT kernels of rope, in numba-cuda."""
