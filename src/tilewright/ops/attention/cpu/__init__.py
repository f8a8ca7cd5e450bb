"""CPU kernels of attention: `unfused`, `fused`, `blocks` (vectors of float32, and all kernels that draw tasks), `words`
(bfloat16 in vectors), `tiles` (bfloat16 on AMX) with `turned` (its softmax); `append` keeps keys and values, `expect`
prefetches, `parameters` has the records that kernels are told."""
