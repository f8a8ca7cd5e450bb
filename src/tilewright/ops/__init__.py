"""The operations: one folder per operation. Each has a reference in NumPy and a ladder of kernels, from naive to
fast."""
