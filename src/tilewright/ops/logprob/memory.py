"""Bytes of what logprob keeps beside matmul's weights."""

from tilewright.ops.core.ladder import Memory


def plain(problem) -> Memory:
    """A plain float32 matrix, copied from matmul's panels."""
    return Memory(4 * problem.K * problem.N)
