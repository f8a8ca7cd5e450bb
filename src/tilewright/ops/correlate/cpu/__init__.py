"""CPU kernels of correlate."""
