"""SIMT kernels of embedding, in numba-cuda: tables and out float32, ids and positions int32 or int64, contiguous."""
