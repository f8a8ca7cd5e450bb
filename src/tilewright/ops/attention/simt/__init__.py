"""SIMT kernels of attention for NVIDIA GPUs, in numba-cuda, float32.

All take rows (rows, heads * D), a cache's keys and values (slots, heads, length, D), and tiles (n, 5) of up to TILE
queries (slot, first, count, row, end); one of count 0 is nobody's row, and gets zeros.
"""
