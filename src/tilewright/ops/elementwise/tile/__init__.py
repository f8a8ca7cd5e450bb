"""Tile kernels of the elementwise functions, in Triton."""
