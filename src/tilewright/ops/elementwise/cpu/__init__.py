"""CPU kernels of the elementwise functions, a file an idea."""
