"""CPU kernels of matmul without packing; the packed ones are in `gemm.cpu`."""
