"""Tile kernels of layernorm, in Triton: x and out (rows, C), contiguous, of any float dtype."""
