"""CPU kernels of conv1d, one file per idea."""
