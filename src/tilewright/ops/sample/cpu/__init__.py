"""CPU kernels of sample."""
