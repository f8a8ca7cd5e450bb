"""SIMT rungs of conv_transpose2d for NVIDIA GPUs: kernels in numba-cuda, and matmul's over rows of pixels."""
