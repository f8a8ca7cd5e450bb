"""Sums and maxima over the threads of a warp or of a block, one value per thread.

The threads of a warp exchange registers by shuffles. numba-cuda's simulator has no shuffles: there all threads of a
block exchange values through shared memory, so every thread of the block must call these functions.
"""

from numba import cuda, float32, int64

from tilewright.ops.core.gpu.limits import THREADS_LIMIT
from tilewright.ops.core.gpu.simt import SIMULATED, inline

WARP, EVERY = 32, 0xFFFFFFFF
THREADS = 256  # threads of a block that computes one row
WARPS = THREADS // WARP
LOWEST = float32(float("-inf"))
TOTAL = 0  # index of the result in a buffer


@inline
def larger(a, b):
    """The larger of two values."""
    return max(a, b)


@inline
def plus(a, b):
    """The sum of two values."""
    return float32(a + b)


if SIMULATED:

    @inline
    def _exchange(buffer, value, mask):
        thread = cuda.threadIdx.x
        buffer[thread] = value
        cuda.syncthreads()
        other = buffer[thread ^ mask]
        cuda.syncthreads()
        return other

    @inline
    def shuffle(value, mask):
        """The float32 value of the lane whose index differs from this one's in the bits of `mask`."""
        return _exchange(cuda.shared.array(THREADS_LIMIT, float32), value, mask)

    @inline
    def shuffle_index(value, mask):
        """As `shuffle`, for an int64."""
        return _exchange(cuda.shared.array(THREADS_LIMIT, int64), value, mask)

else:

    @inline
    def shuffle(value, mask):
        """The float32 value of the lane whose index differs from this one's in the bits of `mask`."""
        return cuda.shfl_xor_sync(EVERY, value, mask)

    shuffle_index = shuffle  # an int64 takes two shuffles


def over_warp(combine, lanes: int = WARP):
    """reduce(value): `combine` over the values of a warp, the same bits in every lane. One shuffle per level.

    lanes: of a warp, a power of two; fewer than 32 only in the simulator, whose threads are slow.
    """

    @inline
    def reduce(value):
        if lanes > 16:
            value = combine(value, shuffle(value, 16))
        if lanes > 8:
            value = combine(value, shuffle(value, 8))
        if lanes > 4:
            value = combine(value, shuffle(value, 4))
        if lanes > 2:
            value = combine(value, shuffle(value, 2))
        return combine(value, shuffle(value, 1))

    return reduce


def over_tree(combine, threads: int):
    """reduce(value, buffer): `combine` over the values of a block, halved in shared memory until one is left.

    threads: of the block, a power of two. buffer: as many elements of shared memory.
    """

    @inline
    def reduce(value, buffer):
        thread, step = cuda.threadIdx.x, threads // 2
        cuda.syncthreads()  # no thread still reads earlier values
        buffer[thread] = value
        while step:
            cuda.syncthreads()
            if thread < step:
                buffer[thread] = combine(buffer[thread], buffer[thread + step])
            step //= 2
        cuda.syncthreads()
        return buffer[TOTAL]

    return reduce


def _over_block(combine, over_warp):
    """reduce(value, buffer): as `over_tree` by shuffles, then one value per warp in shared memory: two barriers."""

    @inline
    def reduce(value, buffer):
        thread, of_warp = cuda.threadIdx.x, buffer
        value = over_warp(value)
        cuda.syncthreads()
        if thread % WARP == 0:
            of_warp[thread // WARP] = value
        cuda.syncthreads()
        return combine(
            combine(combine(of_warp[0], of_warp[1]), combine(of_warp[2], of_warp[3])),
            combine(combine(of_warp[4], of_warp[5]), combine(of_warp[6], of_warp[7])),
        )

    return reduce


warp_sum, warp_largest = over_warp(plus), over_warp(larger)
block_sum, block_largest = _over_block(plus, warp_sum), _over_block(larger, warp_largest)
