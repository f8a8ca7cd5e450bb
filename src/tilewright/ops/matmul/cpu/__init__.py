"""CPU kernels of matmul, a file an idea."""
