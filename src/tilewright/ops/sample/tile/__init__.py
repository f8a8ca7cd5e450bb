"""Tile kernels of sample, in Triton."""
