"""What all operations share: the ladder, threads, arrays and memory; `gpu/` for kernels on a GPU."""
