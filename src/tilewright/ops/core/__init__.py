"""Shared by all operations: the ladder, threads, arrays and memory; `gpu/` for kernels on a GPU."""
