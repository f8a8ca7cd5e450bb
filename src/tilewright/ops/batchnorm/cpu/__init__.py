"""CPU kernels of batchnorm, a file an idea."""
