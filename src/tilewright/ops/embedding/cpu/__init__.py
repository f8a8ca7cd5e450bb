"""CPU kernels of embedding, a file an idea."""
