"""Tile kernels of pool, in Triton."""
