"""Tile kernels of matmul_argmax for NVIDIA GPUs: matmul's products of tiles, which end in a comparison, not a store."""
