"""An elementwise function in numba-cuda: out[i] = function(x[i]), by the C library in float64, rounded once.

x and out: float32 (N,), contiguous; out may be x. relu and tanh are limited by memory, 8 bytes per element; both forms
of GELU by their float64 operations.
"""

from functools import cache

from numba import cuda, float32, float64

from tilewright.ops.core.gpu.limits import check_threads
from tilewright.ops.core.gpu.registers import load4, store4
from tilewright.ops.core.gpu.simt import inline, kernel, launch
from tilewright.ops.elementwise import scalars


@inline
def relu(x):
    """max(x, 0); NaN stays NaN."""
    return float32(0) if x < 0 else x


@cache
def function_of(name: str):
    """function(x) -> float32, for kernels. name: one of `reference.FUNCTIONS`."""
    if name == "relu":
        return relu
    wide = inline(scalars.FUNCTIONS[name])
    return inline(lambda x: float32(wide(float64(x))))


@cache
def naive(name: str):
    """kernel(x, out), one thread per element. It is the lowest rung: a load and a store of 4 bytes per thread.

    It is slow because loads of 4 bytes per thread do not keep the memory busy.
    """
    function = function_of(name)

    @kernel
    def apply(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = function(x[i])

    return apply


@cache
def vectors(name: str):
    """kernel(x, out), one thread per four elements, in loads and stores of 16 bytes. One thread takes the remainder of
    fewer than four, one at a time.

    It is slow where the function's float64 operations take longer than its bytes, and where there are few elements.
    """
    function = function_of(name)

    @kernel
    def apply(x, out):
        i = 4 * cuda.grid(1)
        if i + 4 <= x.size:
            a, b, c, d = load4(x, i)
            store4(out, i, (function(a), function(b), function(c), function(d)))
        else:
            for j in range(i, x.size):
                out[j] = function(float32(x[j]))

    return apply


KERNELS = {"naive": (naive, 1), "vectors": (vectors, 4)}  # kernel for a function, elements per thread


def run(function: str, x, out, *, kernel: str, block: int) -> None:
    """out = function(x), both contiguous float32 tensors. kernel: a key of KERNELS. block: threads per block, which
    change no bit. Raises Refused for a block that no GPU has."""
    check_threads(block)
    kernel_of, each = KERNELS[kernel]
    launch(kernel_of(function), -(-x.numel() // (block * each)), block, (x.view(-1), out.view(-1)))
