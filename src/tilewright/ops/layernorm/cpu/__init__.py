"""CPU kernels of layernorm."""
