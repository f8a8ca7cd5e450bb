"""SIMT kernels of conv3d for NVIDIA GPUs, in numba-cuda: a file an idea, from a thread an output to marching planes.

Sums run over a, b, t in that order, by fused multiply-adds (with channels c first), whatever the tiles.
"""
