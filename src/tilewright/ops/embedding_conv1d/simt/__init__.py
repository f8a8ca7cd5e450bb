"""SIMT kernels of embedding_conv1d for NVIDIA GPUs, in numba-cuda: sums of the token table's rows.

All take cache float32 (slices, capacity, groups, width), the table's rows; slots int32 (B, L); bias (branches * O,);
bounds int32 (branches + 1,), the group of each branch's first tap (one element of the filter), then the number of
groups; out (B, branches * O).
"""
