"""Bytes of a transposed convolution's weights (KH, KW, O, C) as each rung keeps them, and while it makes them.

The tests compare each figure with the arrays that `prepare` makes.
"""

import itertools

from tilewright.hardware import cpu
from tilewright.ops.conv_transpose2d.operands import Axis
from tilewright.ops.conv_transpose2d.problem import Problem
from tilewright.ops.conv_transpose2d.simt.matrices import PRODUCT
from tilewright.ops.conv_transpose2d.tile.forms import GROUP, PIXELS, block_depth, rolling_columns, together
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


def taps_of_phases(problem: Problem) -> list[int]:
    """Taps of each phase of the output."""
    pairs = itertools.product(problem.rows.phases, problem.columns.phases)
    return [len(problem.rows.taps(i)) * len(problem.columns.taps(j)) for i, j in pairs]


def plain_bytes(problem: Problem) -> int:
    """The weights as float32."""
    return 4 * problem.rows.K * problem.columns.K * problem.O * problem.C


def window_size(problem: Problem) -> int:
    """Input pixels that an output reads, at most."""
    return problem.rows.window[1] * problem.columns.window[1]


def while_packing(problem: Problem, own: int) -> Memory:
    """`own` bytes of panels, made from a copy of the weights, dense kernels of all phases, and unpacked panels."""
    plain = plain_bytes(problem)
    dense = 4 * phase_count(problem) * window_size(problem) * problem.O * problem.C
    return Memory(own, 2 * plain + 2 * dense + own)


def zero_inserted(problem: Problem) -> Memory:
    """One matrix of all taps."""
    taps = problem.rows.K * problem.columns.K
    return while_packing(problem, matrix_bytes(taps * problem.C, problem.O, problem))


def phases(problem: Problem) -> Memory:
    """One matrix per phase."""
    own = sum(matrix_bytes(count * problem.C, problem.O, problem) for count in taps_of_phases(problem))
    return while_packing(problem, own)


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
    plain, factors = plain_bytes(problem), 8 * PRODUCTS**2 * phase_count(problem) * O * C
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


def transposed(problem: Problem) -> Memory:
    """float32 (KH, KW, C, O) on a GPU."""
    return Memory(plain_bytes(problem))


def gpu_matrix(problem: Problem) -> Memory:
    """One matrix of all taps on a GPU, for matmul's PRODUCT."""
    return _matrices(problem, [problem.rows.K * problem.columns.K])


def gpu_matrices(problem: Problem) -> Memory:
    """One matrix per phase on a GPU, for matmul's PRODUCT."""
    return _matrices(problem, taps_of_phases(problem))


def _matrices(problem: Problem, taps: list[int]) -> Memory:
    sizes = [Product(problem.O, count * problem.C, "float32", "cuda") for count in taps]
    own = sum(products.rungs[PRODUCT].memory_for(product).prepared for product in sizes)
    return Memory(own, 4 * max(product.N * product.K for product in sizes))


def tile_phases(problem: Problem) -> Memory:
    """For the tile kernels: one product per phase."""
    return _tiles(problem, "phases")


def tile_columns(problem: Problem) -> Memory:
    """For the tile kernels: one product for all phases."""
    return _tiles(problem, "columns")


def tile_boxes(problem: Problem) -> Memory:
    """For the tile kernels: one product per row of phases where these are narrow, otherwise one per phase."""
    return _tiles(problem, "boxes")


def tile_blocks(problem: Problem) -> Memory:
    """As `tile_columns`, and beside it the weights of blocks of positions."""
    one = _tiles(problem, "columns")
    rows, across = (GROUP * axis.stride * (axis.window[1] + GROUP - 1) for axis in (problem.rows, problem.columns))
    blocks = rows * across * problem.O * _depth_bytes(problem)
    return Memory(one.prepared + blocks, one.preparing + 2 * blocks)


def tile_rolling(problem: Problem) -> Memory:
    """As `tile_columns`, and beside it a matrix for each pixel of a block of columns."""
    one, N = _tiles(problem, "rolling"), rolling_columns(problem.rows.K, problem.O)
    own = PIXELS * N * problem.C * (4 if problem.dtype in ("float32", "tf32") else 2)
    return Memory(one.prepared + own, one.preparing + own + 8 * PIXELS * N * problem.C)


def _tiles(problem: Problem, form: str) -> Memory:
    """(N, taps down, taps across, depth) in the class, for float32 two limbs; made from float32 copies."""
    down, across = together(form, problem.columns, problem.O)
    count = _rows_of(problem.rows, down) * _rows_of(problem.columns, across)
    own = count * problem.O * _depth_bytes(problem)
    return Memory(own, 2 * plain_bytes(problem) + 2 * count * problem.O * 4 * problem.C + own)


def _rows_of(axis: Axis, one_product: bool) -> int:
    """Phases times taps along an axis that the layout has for each output channel."""
    return axis.stride * axis.window[1] if one_product else axis.K


def _depth_bytes(problem: Problem) -> int:
    """Bytes of all channels of one tap, whole blocks."""
    itemsize = 4 if problem.dtype in ("float32", "tf32") else 2  # float32: two bfloat16 limbs
    return itemsize * gemm.padded(problem.C, block_depth(problem.C, problem.dtype))
