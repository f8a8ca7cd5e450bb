"""SIMT kernels of matmul_argmax for NVIDIA GPUs, in numba-cuda: they search the rows of a product that matmul wrote."""
