"""WHAT is computed: one folder an operation, a ladder of kernels in each."""
