"""Bytes of embedding_conv1d's weights as each rung keeps them, and of a row of its token table.

The tests compare each figure with the arrays that `prepare` makes.
"""

from tilewright.ops.conv1d import Problem as Branch
from tilewright.ops.conv1d import ladder as branches
from tilewright.ops.core.ladder import Memory, preferring
from tilewright.ops.core.layers import layer
from tilewright.ops.embedding_conv1d.cpu.gather_add import SLICE
from tilewright.ops.embedding_conv1d.problem import Problem
from tilewright.ops.gemm.memory import padded
from tilewright.ops.matmul import Problem as Product
from tilewright.ops.matmul import ladder as products

CONVOLUTION = "simt.rows"  # conv1d's rung beneath simt.gather, unless `using` forces another
LINE = 128  # bytes of a row in one slice on a GPU: what eight lanes load, and a cache line of L2


def filters(problem: Problem) -> Memory:
    """Each branch's weights as conv1d's rung keeps them."""
    found = []
    for i, K in enumerate(problem.kernels, start=1):
        branch = Branch(problem.O, problem.C, K, problem.dtype, problem.device)
        with layer(conv1d=i):
            found.append(branches.choose(branch).memory_for(branch))
    return Memory(sum(one.prepared for one in found), max(one.preparing for one in found))


def device_filters(problem: Problem) -> Memory:
    """As `filters`, for the rung of conv1d that `simt.gather` runs."""
    with preferring(conv1d=CONVOLUTION):
        return filters(problem)


def matrices(problem: Problem) -> Memory:
    """One matrix (C, O) per tap; an entry of the table is a token's row for one tap."""
    product = Product(problem.O, problem.C, problem.dtype, problem.device)
    own, preparing, _ = products.choose(product).memory_for(product)
    return Memory(sum(problem.kernels) * own, preparing, row_bytes(problem.O))


def row_bytes(O: int) -> int:
    """A row of the table on the CPU."""
    return 4 * padded(O, SLICE)


def matrix(problem: Problem) -> Memory:
    """One matrix (C, taps * O); an entry of the table is a token with its rows for all taps, which stay whole."""
    return _on_gpu(problem, cut=False)


def matrix_of_slices(problem: Problem) -> Memory:
    """As `matrix`, with a table whose rows are cut into slices of a LINE."""
    return _on_gpu(problem, cut=True)


def _on_gpu(problem: Problem, *, cut: bool) -> Memory:
    groups, width = sum(problem.kernels), row_width(problem.O, problem.dtype, cut=cut)
    product = Product(groups * problem.O, problem.C, problem.dtype, problem.device)
    own, preparing, _ = products.choose(product).memory_for(product)
    entry = groups * padded(problem.O, width) * item_bytes(problem.dtype)
    return Memory(own, preparing + 4 * problem.C * groups * problem.O, entry)


def row_width(O: int, dtype: str, *, cut: bool) -> int:
    """Elements of a row that are stored together in the table on a GPU: a LINE, or all of a row that stays whole."""
    return LINE // item_bytes(dtype) if cut else max(1 << (O - 1).bit_length(), 4)


def item_bytes(dtype: str) -> int:
    """Bytes of an element of the table on a GPU in a class."""
    return 2 if dtype in ("bfloat16", "float16") else 4
