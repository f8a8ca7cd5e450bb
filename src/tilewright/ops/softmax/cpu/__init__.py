"""CPU kernels of softmax."""
