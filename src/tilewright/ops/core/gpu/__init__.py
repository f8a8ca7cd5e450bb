"""What operations share on a GPU: tensors, and the parts of SIMT kernels."""
