"""CPU kernels of conv1d, a file an idea."""
