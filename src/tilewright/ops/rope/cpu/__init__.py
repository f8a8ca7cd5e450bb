"""CPU kernels of rope."""
