"""What threads of a warp tell one another: values from register to register, by shuffles.

numba-cuda's simulator knows no shuffles; there all threads of a block meet at a barrier instead, so all must come.
"""

from numba import cuda, float32, int64

from tilewright.ops.core.gpu.simt import SIMULATED, inline

WARP = 32  # threads
THREADS = WARP if SIMULATED else 4 * WARP  # of a block that uses these

if SIMULATED:

    @inline
    def _through(places, value, distance):
        cuda.syncthreads()
        places[cuda.threadIdx.x] = value
        cuda.syncthreads()
        return places[cuda.threadIdx.x ^ distance]

    @inline
    def exchange(value, distance):
        """The value of the thread whose number in the warp differs from this one's by the bit `distance`, float32."""
        return _through(cuda.shared.array(THREADS, float32), value, distance)

    @inline
    def exchange_index(value, distance):
        """The same of an int64."""
        return _through(cuda.shared.array(THREADS, int64), value, distance)

    @inline
    def warp_sum(value):
        """The sum over a warp's threads."""
        places = cuda.shared.array(THREADS, float32)
        _through(places, value, 0)
        return places.sum()

else:
    ALL = 0xFFFFFFFF  # threads of a warp

    @inline
    def exchange(value, distance):
        """The value of the thread whose number in the warp differs from this one's by the bit `distance`, float32."""
        return cuda.shfl_xor_sync(ALL, value, distance)

    @inline
    def exchange_index(value, distance):
        """The same of an int64."""
        return cuda.shfl_xor_sync(ALL, value, distance)

    @inline
    def warp_sum(value):
        """The sum over a warp's threads, the same bits in each: a tree."""
        distance = WARP // 2
        while distance > 0:
            value += exchange(value, distance)
            distance //= 2
        return value
