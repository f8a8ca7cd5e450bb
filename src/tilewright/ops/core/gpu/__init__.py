"""Shared by the operations on a GPU: tensors, and the parts of SIMT kernels."""
