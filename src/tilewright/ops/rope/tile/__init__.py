"""Tile kernels of rope, in Triton."""
