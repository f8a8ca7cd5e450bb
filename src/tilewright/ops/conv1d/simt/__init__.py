"""SIMT kernels of conv1d for NVIDIA GPUs, in numba-cuda: from one thread per output to sums that are never written.

All take float32 x (B, C, L), weight (O, C, K) and out, contiguous; bias (O,) or empty; stride, padding and dilation;
and relu, True if ReLU follows. A sum runs over channels, then taps (elements of the filter), by fused multiply-adds,
whatever the tiles.
"""
