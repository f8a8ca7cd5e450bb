"""Tile kernels of conv_transpose2d for NVIDIA GPUs, in Triton: implicit matrix products, without an im2col matrix.

Rows of a product are positions of the output in all images. Its columns are channels of one phase, or of several. Along
its depth are taps (elements of the filter), each with C channels: for a tap (d, e) the rows are x shifted by it, with
zeros outside. Weights are stored as (O, KH, KW, C'), C' being C rounded up to whole blocks of the depth: both operands
are contiguous along it.
"""
