"""CPU kernels of embedding."""
