"""Bytes of conv1d's weights (O, C, K) as each rung keeps them, and while it makes them."""

from tilewright.hardware import cpu
from tilewright.ops.conv1d.simt.form import BEYOND, COLUMNS, DEEPEST
from tilewright.ops.core.ladder import Memory
from tilewright.ops.gemm.memory import padded
from tilewright.ops.matmul import Problem as Product
from tilewright.ops.matmul import ladder as products


def channels(problem) -> Memory:
    """float32 panels of as many channels as the highest tile of `cpu.channel_tiles` has."""
    return Memory(4 * padded(problem.O, 8 if cpu().lanes == 8 else 16) * problem.C * problem.K)


def matrix(problem) -> Memory:
    """matmul's weights (K * C, O), made of a copy with the taps first."""
    product = Product(problem.O, problem.K * problem.C, problem.dtype, problem.device)
    own, preparing, _ = products.choose(product).memory_for(product)
    return Memory(own, preparing + 4 * problem.O * problem.C * problem.K)


def rows(problem) -> Memory:
    """float32 (C * K, O) of `simt.rows`, padded to whole steps and blocks."""
    return Memory(4 * padded(problem.O, COLUMNS) * (padded(problem.C, DEEPEST) * problem.K + BEYOND))
