"""Sums and maxima over the threads of a warp or of a block, one value per thread.

The threads of a warp exchange registers by shuffles. numba-cuda's simulator has none: there all threads of a block
exchange values through shared memory, so every thread of the block must call these functions.
"""

from numba import cuda, float32, int64

from tilewright.ops.core.gpu.simt import SIMULATED, inline

WARP, EVERY = 32, 0xFFFFFFFF
THREADS = 256  # of a block that computes one row
WARPS = THREADS // WARP
LOWEST = float32(float("-inf"))
MOST = 1024  # threads of a block


@inline
def larger(a, b):
    """The larger of two numbers."""
    return max(a, b)


@inline
def plus(a, b):
    """The sum of two numbers."""
    return float32(a + b)


if SIMULATED:

    @inline
    def _through(room, value, mask):
        thread = cuda.threadIdx.x
        room[thread] = value
        cuda.syncthreads()
        other = room[thread ^ mask]
        cuda.syncthreads()
        return other

    @inline
    def shuffle(value, mask):
        """The float32 value of the lane whose index differs from this one's in the bits of `mask`."""
        return _through(cuda.shared.array(MOST, float32), value, mask)

    @inline
    def shuffle_index(value, mask):
        """As `shuffle`, for an int64."""
        return _through(cuda.shared.array(MOST, int64), value, mask)

else:

    @inline
    def shuffle(value, mask):
        """The float32 value of the lane whose index differs from this one's in the bits of `mask`."""
        return cuda.shfl_xor_sync(EVERY, value, mask)

    @inline
    def shuffle_index(value, mask):
        """As `shuffle`, for an int64."""
        return cuda.shfl_xor_sync(EVERY, value, mask)


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


def _over_tree(combine):
    """reduce(value, room): `combine` over the THREADS values of a block, halved eight times in shared memory. room:
    THREADS elements of it."""

    @inline
    def reduce(value, room):
        thread, step = cuda.threadIdx.x, THREADS // 2
        cuda.syncthreads()  # no thread still reads earlier values
        room[thread] = value
        while step:
            cuda.syncthreads()
            if thread < step:
                room[thread] = combine(room[thread], room[thread + step])
            step //= 2
        cuda.syncthreads()
        return room[0]

    return reduce


def _over_block(combine, over_warp):
    """reduce(value, room): as `_over_tree` by shuffles, then one value per warp in shared memory: two barriers."""

    @inline
    def reduce(value, room):
        thread = cuda.threadIdx.x
        value = over_warp(value)
        cuda.syncthreads()
        if thread % WARP == 0:
            room[thread // WARP] = value
        cuda.syncthreads()
        return combine(
            combine(combine(room[0], room[1]), combine(room[2], room[3])),
            combine(combine(room[4], room[5]), combine(room[6], room[7])),
        )

    return reduce


warp_sum, warp_largest = over_warp(plus), over_warp(larger)
tree_sum, tree_largest = _over_tree(plus), _over_tree(larger)
block_sum, block_largest = _over_block(plus, warp_sum), _over_block(larger, warp_largest)
