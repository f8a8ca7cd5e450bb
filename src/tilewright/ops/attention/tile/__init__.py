"""Tile kernels of attention for NVIDIA GPUs, in Triton: a program has a block of queries of one head in registers.

All share `blocks.absorb`, so a query's bits are the same whichever kernel looks: keys come in blocks from position 0
on, of a size that D and dtype decide. A block cut short because no sequence of the call fills it adds zeros less, which
changes no sum. Products are of the cache's dtype on matrix units; sums, maxima and shares are float32.
"""
