"""CPU kernels of embedding_conv1d."""
