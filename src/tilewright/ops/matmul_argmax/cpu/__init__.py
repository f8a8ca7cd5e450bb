"""CPU kernels of matmul_argmax."""
