"""Tile kernels of matmul_argmax for NVIDIA GPUs: tiles of `gemm` that are searched, not stored."""
