"""Tile kernels of softmax, in Triton: x and out (rows, C), contiguous, of any float dtype."""
