"""Tile kernels of batchnorm, in Triton."""
