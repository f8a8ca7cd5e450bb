"""CPU kernels of softmax, a file an idea."""
