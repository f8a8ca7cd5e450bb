"""Tile kernels of logprob, in Triton."""
