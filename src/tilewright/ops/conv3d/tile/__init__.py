"""Tile kernels of conv3d for GPUs, in Triton: a program computes a tile of outputs, whose arrays Triton lays out."""
