"""SIMT kernels of batchnorm, in numba-cuda."""
