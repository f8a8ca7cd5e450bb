"""CPU kernels of conv3d."""
