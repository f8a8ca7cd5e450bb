"""What SIMT kernels of several operations share: bias and activation."""
