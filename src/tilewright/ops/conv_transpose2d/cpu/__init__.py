"""CPU kernels of conv_transpose2d, one file per idea."""
