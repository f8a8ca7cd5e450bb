"""Tile kernels of layernorm, in Triton."""
