"""Tile kernels of embedding, in Triton."""
