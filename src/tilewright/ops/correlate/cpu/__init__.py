"""CPU kernels of correlate, a file an idea."""
