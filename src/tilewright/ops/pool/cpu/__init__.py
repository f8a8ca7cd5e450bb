"""CPU kernels of pool."""
