"""CPU kernels of matmul_argmax, a file an idea."""
