"""Multiply-adds of a GPU, and nothing else: the kernel behind float32's roof."""

import triton
import triton.language as tl

BLOCK = tl.constexpr(4096)  # numbers a program has: 32 a thread, more chains than a multiply-add takes cycles
STEPS = tl.constexpr(2048)


@triton.jit
def multiply_adds(numbers, factor, term):
    """numbers = numbers * factor + term, STEPS times; float32, BLOCK of them a program."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(numbers + at)
    for _ in range(STEPS):
        x = tl.fma(x, factor, term)
    tl.store(numbers + at, x)
