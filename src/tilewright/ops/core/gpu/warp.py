"""The sum or the largest of a number of every thread, of a warp or of a block: what normalisations are made of.

Warps exchange registers by shuffles, which numba-cuda's simulator does not know: there they meet in shared memory, and
every thread of the block must come.
"""

from numba import cuda, float32

from tilewright.ops.core.gpu.simt import SIMULATED, inline

WARP, EVERY = 32, 0xFFFFFFFF
THREADS = 256  # of a block that shares a row
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
    def shuffle(value, mask):
        """The number of the lane whose index differs from this one's in the bits of `mask`."""
        room = cuda.shared.array(MOST, float32)
        thread = cuda.threadIdx.x
        room[thread] = value
        cuda.syncthreads()
        other = room[thread ^ mask]
        cuda.syncthreads()
        return other

else:

    @inline
    def shuffle(value, mask):
        """The number of the lane whose index differs from this one's in the bits of `mask`."""
        return cuda.shfl_xor_sync(EVERY, value, mask)


def _over_warp(combine):
    """reduce(value): what `combine` makes of the 32 numbers of a warp, in every lane. No barrier, five shuffles."""

    @inline
    def reduce(value):
        value = combine(value, shuffle(value, 16))
        value = combine(value, shuffle(value, 8))
        value = combine(value, shuffle(value, 4))
        value = combine(value, shuffle(value, 2))
        return combine(value, shuffle(value, 1))

    return reduce


def _over_tree(combine):
    """reduce(value, room): what `combine` makes of a block's THREADS numbers, halved eight times in shared memory;
    room: THREADS numbers of it."""

    @inline
    def reduce(value, room):
        thread, step = cuda.threadIdx.x, THREADS // 2
        cuda.syncthreads()  # nobody reads the room's last numbers any more
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
    """reduce(value, room): the same by shuffles, then a number a warp in shared memory: two barriers, not ten."""

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


warp_sum, warp_largest = _over_warp(plus), _over_warp(larger)
tree_sum, tree_largest = _over_tree(plus), _over_tree(larger)
block_sum, block_largest = _over_block(plus, warp_sum), _over_block(larger, warp_largest)
