"""CPU kernels of conv3d, a file an idea."""
