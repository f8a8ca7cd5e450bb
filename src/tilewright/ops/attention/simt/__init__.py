"""SIMT kernels of attention for NVIDIA GPUs, in numba-cuda, float32.

All take rows (rows, heads * D), a cache's keys and values (slots, heads, length, D), and tiles, int32 (n, 5), of up to
TILE queries (slot, first, count, row, end). A tile of count 0 is a row that belongs to no sequence; it gets zeros.
"""
