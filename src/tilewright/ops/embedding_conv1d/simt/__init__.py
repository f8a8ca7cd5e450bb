"""SIMT kernels of embedding_conv1d for NVIDIA GPUs, in numba-cuda: sums of the token table's rows.

All take kept (slices, capacity, groups, width) float32, places int32 (B, L), bias (branches * O,), bounds int32
(branches + 1,) - the group of each branch's first tap, then the number of groups - and out (B, branches * O).
"""
