"""CPU kernels of matmul."""
