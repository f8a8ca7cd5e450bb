"""Tile kernels of embedding_conv1d for NVIDIA GPUs, in Triton: sums of the token table's rows."""
