"""A row of products and its best: one thread, then a warp whose threads exchange what they found."""

from numba import cuda, int64

from tilewright.ops.core.gpu.simt import inline, kernel
from tilewright.ops.matmul.simt.exchange import THREADS, WARP, exchange, exchange_index


@inline
def beats(value, at, best, place):
    """Whether a product at a column comes before the best so far: it is larger, or NaN, or as large and further
    left."""
    if value != value or best != best:
        return value != value and (best == best or at < place)
    return value > best or (value == best and at < place)


@kernel
def row(products, index, value):
    """A thread a row of products (M, N). A warp's threads read 32 rows at once, which memory delivers one by one."""
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
    """A warp a row of products (M, N): its threads read adjacent ones, and exchange their best in five steps.

    Rows past the last are read as the last, and not written: all threads of a warp take part in an exchange.
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
        other, there = exchange(best, distance), exchange_index(place, distance)
        if beats(other, there, best, place):
            best, place = other, there
        distance //= 2
    if lane == 0 and i < M:
        index[i] = place
        value[i] = best
