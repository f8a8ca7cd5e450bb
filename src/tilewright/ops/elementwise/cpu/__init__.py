"""CPU kernels of the elementwise functions."""
