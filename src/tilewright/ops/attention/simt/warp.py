"""Sums and maxima over the threads of a warp, each of which gets the result. In numba-cuda's simulator, which has no
shuffles, they meet in shared memory, and a warp has two threads."""

from numba import cuda, float32

from tilewright.ops.core.gpu.simt import SIMULATED, inline

LANES = 2 if SIMULATED else 32
ALL = 0xFFFFFFFF

if SIMULATED:

    @inline
    def from_lane(value, distance):
        """The value of the lane whose number differs by the bit `distance`."""
        room = cuda.shared.array(LANES, float32)
        cuda.syncthreads()
        room[cuda.threadIdx.x] = value
        cuda.syncthreads()
        return room[cuda.threadIdx.x ^ distance]

else:

    @inline
    def from_lane(value, distance):
        """The value of the lane whose number differs by the bit `distance`."""
        return cuda.shfl_xor_sync(ALL, value, distance)


@inline
def warp_sum(value):
    """The sum over the warp: the same bits in every lane, as each level adds two numbers in either order."""
    distance = LANES // 2
    while distance:
        value += from_lane(value, distance)
        distance //= 2
    return value


@inline
def warp_max(value):
    """The largest over the warp; a NaN is not."""
    distance = LANES // 2
    while distance:
        value = max(value, from_lane(value, distance))
        distance //= 2
    return value
