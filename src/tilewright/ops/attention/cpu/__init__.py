"""CPU kernels of attention: `unfused`, `fused`, `blocks` (float32 vectors, and the kernels that draw tasks), `words`
(bfloat16 in vectors), `tiles` (bfloat16 on AMX) with `transposed` (its softmax). `append` writes to the cache,
`prefetch` issues prefetches, and `records` defines the parameters of the kernels."""
