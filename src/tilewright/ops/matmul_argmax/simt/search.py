"""The best of a row of products: by one thread, or by a warp whose threads exchange their best."""

from numba import cuda, int64

from tilewright.ops.core.gpu.simt import SIMULATED, inline, kernel
from tilewright.ops.core.gpu.warp import WARP, shuffle, shuffle_index

THREADS = WARP if SIMULATED else 4 * WARP  # of a block


@inline
def beats(value, at, best, place):
    """Whether a product at a column comes before the best so far: it is larger, or NaN, or as large and further
    left."""
    if value != value or best != best:
        return value != value and (best == best or at < place)
    return value > best or (value == best and at < place)


@kernel
def row(products, index, value):
    """One thread per row of products (M, N). A warp's threads read 32 rows at once: 32 memory transactions."""
    i = cuda.grid(1)
    if i < products.shape[0]:
        best, place = products[i, 0], int64(0)
        for j in range(1, products.shape[1]):
            found = products[i, j]
            if beats(found, int64(j), best, place):
                best, place = found, int64(j)
        index[i] = place
        value[i] = best


@kernel
def shuffles(products, index, value):
    """One warp per row of products (M, N): its threads read adjacent elements and exchange their best in five steps.

    Rows past the last read the last row and write nothing: all threads of a warp must take part in a shuffle.
    """
    i, lane = cuda.blockIdx.x * (THREADS // WARP) + cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP
    M, N = products.shape
    at = min(i, M - 1)
    place = int64(min(lane, N - 1))
    best = products[at, place]
    for j in range(lane + WARP, N, WARP):
        found = products[at, j]
        if beats(found, int64(j), best, place):
            best, place = found, int64(j)
    distance = WARP // 2
    while distance > 0:
        other, there = shuffle(best, distance), shuffle_index(place, distance)
        if beats(other, there, best, place):
            best, place = other, there
        distance //= 2
    if lane == 0 and i < M:
        index[i] = place
        value[i] = best
