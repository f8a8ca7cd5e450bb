"""Tile kernels of conv_transpose2d for NVIDIA GPUs, in Triton: implicit matrix products, an image is never laid out.

Rows of a product are positions j of the output, in all images; its columns are channels of one phase, or of all; and
along its depth lie taps, each with C channels: for a tap (d, e) the tile of rows is x shifted by it, zeros outside.
Weights are kept as (O, KH, KW, C'), C' whole blocks of the depth, so that both operands lie along the depth.
"""
