"""A GPU kernel that only does multiply-adds. Its rate is the float32 limit."""

import triton
import triton.language as tl

BLOCK = tl.constexpr(4096)  # numbers per program: 32 per thread, more than a multiply-add has cycles of latency
STEPS = tl.constexpr(2048)


@triton.jit
def multiply_adds(numbers, factor, term):
    """numbers = numbers * factor + term, STEPS times, in float32. A program has BLOCK numbers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(numbers + at)
    for _ in range(STEPS):
        x = tl.fma(x, factor, term)
    tl.store(numbers + at, x)
