"""Tile kernels of softmax, in Triton."""
