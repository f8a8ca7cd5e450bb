"""Bytes of what matmul_argmax keeps beside matmul's weights."""

from tilewright.ops.core.ladder import Memory
from tilewright.ops.gemm.memory import columns


def screen(problem) -> Memory:
    """Weights in 8 bits and four float32 per column, besides b's rows, which the caller's array already is if b is the
    transpose of a contiguous one."""
    return Memory(columns(problem.N) * (problem.K + 16))
