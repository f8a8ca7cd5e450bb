"""CPU kernels of attention, a file an idea."""
