"""SIMT kernels of matmul for NVIDIA GPUs, in numba-cuda: one file per idea, from one element per thread to warp tiles.

All take contiguous float32 matrices a (M, K), b (K, N), out and residual (M, N), and bias (N,); residual and bias may
be empty. A sum runs over K in ascending order by fused multiply-adds, whatever the tiles, except in `narrow`.
"""
