"""CPU kernels of conv_transpose2d, a file an idea."""
