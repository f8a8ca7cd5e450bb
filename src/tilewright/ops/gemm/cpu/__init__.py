"""Matrix products on the CPU, in Numba: BLIS-style packed loops, bfloat16 words, AMX tiles."""
