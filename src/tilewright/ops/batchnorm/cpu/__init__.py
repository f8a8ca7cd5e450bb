"""CPU kernels of batchnorm."""
