"""CPU kernels of layernorm, a file an idea."""
