"""Tile kernels of attention for NVIDIA GPUs, in Triton: a program holds a block of queries of one head in registers.

All use `blocks.absorb`, so a query has the same bits in every kernel. Keys are read in blocks from position 0 on; D and
dtype decide the size of a block. If no sequence of a call fills a block, the block is shortened. That removes zeros
from sums, which does not change them. Products are of the cache's dtype on matrix units; sums, maxima and weights are
float32.
"""
