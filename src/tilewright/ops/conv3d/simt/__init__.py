"""SIMT kernels of conv3d for NVIDIA GPUs, in numba-cuda: one file per idea, from a naive loop to marching planes.

Sums run over a, b, t in that order, by fused multiply-adds (with channels c first), whatever the tiles.
"""
