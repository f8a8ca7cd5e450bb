"""CPU kernels of sample, a file an idea."""
