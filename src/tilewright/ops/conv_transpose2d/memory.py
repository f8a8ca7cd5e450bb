"""Bytes of a transposed convolution's weights (KH, KW, O, C) as each rung keeps them, and while it makes them.

The tests hold each figure against the arrays that `prepare` makes.
"""

import itertools

from tilewright.hardware import cpu
from tilewright.ops.conv_transpose2d.problem import Problem
from tilewright.ops.conv_transpose2d.tiles import PRODUCTS, products_of
from tilewright.ops.core.ladder import Memory
from tilewright.ops.gemm import memory as gemm
from tilewright.ops.gemm.cpu.tiling import words_of
from tilewright.ops.matmul import Problem as Product
from tilewright.ops.matmul import ladder as products


def matrix_bytes(K: int, N: int, problem: Problem) -> int:
    """Bytes of a matrix (K, N) as matmul's rung for this device and class packs it."""
    product = Product(N, K, problem.dtype, problem.device)
    return products.choose(product).memory_for(product).prepared


def phase_count(problem: Problem) -> int:
    """Phases of the output that some tap reaches."""
    return len(problem.rows.phases) * len(problem.columns.phases)


def window_size(problem: Problem) -> int:
    """Input pixels that an output reads, at most."""
    return problem.rows.window[1] * problem.columns.window[1]


def while_packing(problem: Problem, own: int) -> Memory:
    """`own` bytes of panels, made from a copy of the weights, dense kernels of all phases, and unpacked panels."""
    plain = 4 * problem.rows.K * problem.columns.K * problem.O * problem.C
    dense = 4 * phase_count(problem) * window_size(problem) * problem.O * problem.C
    return Memory(own, 2 * plain + 2 * dense + own)


def zero_inserted(problem: Problem) -> Memory:
    """One matrix of all taps."""
    taps = problem.rows.K * problem.columns.K
    return while_packing(problem, matrix_bytes(taps * problem.C, problem.O, problem))


def phases(problem: Problem) -> Memory:
    """One matrix per phase."""
    taps = [len(problem.rows.taps(i)) * len(problem.columns.taps(j))
            for i, j in itertools.product(problem.rows.phases, problem.columns.phases)]  # fmt: skip
    return while_packing(problem, sum(matrix_bytes(count * problem.C, problem.O, problem) for count in taps))


def taps(problem: Problem) -> Memory:
    """Panels of each phase's own taps."""
    steps = problem.C if problem.dtype == "float32" else words_of(problem.C)
    return while_packing(problem, 4 * problem.rows.K * problem.columns.K * steps * gemm.columns(problem.O))


def columns(problem: Problem) -> Memory:
    """Panels of the whole window, the channels of all phases side by side."""
    steps = problem.C if problem.dtype == "float32" else words_of(problem.C)
    wide = gemm.columns(phase_count(problem) * problem.O)
    return while_packing(problem, 4 * window_size(problem) * steps * wide)


def winograd(problem: Problem) -> Memory:
    """Panels of the factors of each product; factors are computed in float64."""
    rows, across, O, C = problem.rows, problem.columns, problem.O, problem.C
    steps = C if problem.dtype == "float32" else words_of(C)
    if phase_count(problem) * O <= cpu().lanes:  # as one phase that needs every product
        own = 4 * PRODUCTS**2 * steps * gemm.columns(phase_count(problem) * O)
    else:
        pairs = itertools.product(rows.phases, across.phases)
        count = sum(len(products_of(rows, i)) * len(products_of(across, j)) for i, j in pairs)
        own = 4 * count * steps * gemm.columns(O)
    plain, factors = 4 * rows.K * across.K * O * C, 8 * PRODUCTS**2 * phase_count(problem) * O * C
    return Memory(own, 2 * plain + factors + max(own, 2 * plain - own))


def pixels(problem: Problem) -> Memory:
    """Each tap's channels, in bfloat16 as pairs."""
    steps = problem.C if problem.dtype == "float32" else -(-problem.C // 2)
    return while_packing(problem, 4 * problem.rows.K * problem.columns.K * problem.O * steps)


def images(problem: Problem) -> Memory:
    """Panels of bfloat16 pairs for AMX tiles, of each phase or of all together where they fit a tile."""
    together = phase_count(problem) * problem.O <= 16
    count = window_size(problem) if together else problem.rows.K * problem.columns.K
    wide = gemm.padded(phase_count(problem) * problem.O if together else problem.O, 32)
    return while_packing(problem, 4 * count * words_of(problem.C) * wide)
