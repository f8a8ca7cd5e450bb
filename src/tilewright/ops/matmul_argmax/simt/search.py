"""index int64, value float32 (M,): the largest of each row of products (M, N), by one thread or by one warp per row.

The limit is reading the products. Where products are equal the lowest column wins, in any order of comparisons. A NaN
wins over all numbers: the value then shows that the row has no largest product.
"""

from numba import cuda, int64

from tilewright.ops.core.gpu.simt import SIMULATED, inline, kernel
from tilewright.ops.core.gpu.warp import WARP, shuffle, shuffle_index

THREADS = WARP if SIMULATED else 4 * WARP  # per block


@inline
def beats(value, column, best, best_column):
    """True if a product comes before the best so far: it is larger, or NaN, or equal in a lower column."""
    if value != value or best != best:
        return value != value and (best == best or column < best_column)
    return value > best or (value == best and column < best_column)


@kernel
def row(products, index, value):
    """One thread per row. The threads of a warp read 32 rows at once: 32 memory transactions."""
    i = cuda.grid(1)
    if i < products.shape[0]:
        best, column = products[i, 0], int64(0)
        for j in range(1, products.shape[1]):
            found = products[i, j]
            if beats(found, int64(j), best, column):
                best, column = found, int64(j)
        index[i] = column
        value[i] = best


@kernel
def shuffles(products, index, value):
    """One warp per row: its threads read adjacent elements, then exchange their best in five steps.

    Warps beyond the last row read it and write nothing: all threads of a warp must take part in a shuffle.
    """
    i, lane = cuda.blockIdx.x * (THREADS // WARP) + cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP
    M, N = products.shape
    row_index = min(i, M - 1)
    column = int64(min(lane, N - 1))
    best = products[row_index, column]
    for j in range(lane + WARP, N, WARP):
        found = products[row_index, j]
        if beats(found, int64(j), best, column):
            best, column = found, int64(j)
    distance = WARP // 2
    while distance > 0:
        other, other_column = shuffle(best, distance), shuffle_index(column, distance)
        if beats(other, other_column, best, column):
            best, column = other, other_column
        distance //= 2
    if lane == 0 and i < M:
        index[i] = column
        value[i] = best
