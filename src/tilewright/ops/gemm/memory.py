"""Bytes of a matrix b (K, N) in each layout that a rung multiplies by. problem: any with N, K and a dtype.

The tests compare each figure with the arrays that `prepare` makes.
"""

from tilewright.hardware import cpu
from tilewright.ops.core.ladder import Memory
from tilewright.ops.gemm.cpu.tiling import TILINGS, words_of

ROW_BYTES, LIMB_BLOCK = 16, 64  # rows of 16-bit weights on a GPU are padded to these: bytes, elements
DEPTH, COLUMNS = 8, 128  # float32 tiles of the SIMT kernels: rows of b, columns of b


def padded(count: int, unit: int) -> int:
    """`count` rounded up to a multiple of `unit`."""
    return -(-count // unit) * unit


def columns(N: int) -> int:
    """Columns of b in whole panels, on this CPU."""
    return padded(N, TILINGS[cpu().lanes].NR)


def panels(problem) -> Memory:
    """float32 panels."""
    return Memory(4 * problem.K * columns(problem.N))


def words(problem) -> Memory:
    """Panels of bfloat16 pairs, made of a copy of b's rows."""
    return Memory(4 * words_of(problem.K) * columns(problem.N), 4 * problem.K * problem.N)


def limbs(problem) -> Memory:
    """Panels of two bfloat16 limbs per element."""
    one = words(problem)
    return Memory(2 * one.prepared, one.preparing)


def tiles(problem) -> Memory:
    """float32 on a GPU, zeros up to whole tiles."""
    return Memory(4 * padded(problem.K, DEPTH) * padded(problem.N, COLUMNS))


def transposed(problem) -> Memory:
    """float32 (N, K) on a GPU."""
    return Memory(4 * problem.K * problem.N)


def rounded(problem) -> Memory:
    """(N, K) in the accuracy class on a GPU, rows padded to 16 bytes."""
    itemsize = 4 if problem.dtype == "tf32" else 2
    return Memory(problem.N * itemsize * padded(max(problem.K, 1), ROW_BYTES // itemsize))


def rounded_limbs(problem) -> Memory:
    """(N, 2 K) bfloat16 limbs on a GPU, each half padded to whole blocks."""
    return Memory(4 * problem.N * padded(max(problem.K, 1), LIMB_BLOCK))
