"""SIMT kernels of matmul for NVIDIA GPUs, in numba-cuda: a file an idea, from a thread an element to warp tiles.

All take float32 matrices a (M, K), b (K, N), out and residual (M, N), contiguous, and bias (N,); an empty residual or
bias is none. K of a product is summed from the first to the last by fused multiply-adds, whatever the tiles.
"""
