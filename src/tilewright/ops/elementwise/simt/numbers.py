"""A thread a number, and a thread four numbers."""

from functools import cache

from numba import cuda, float32

from tilewright.ops.core.gpu.registers import load4, store4
from tilewright.ops.core.gpu.simt import kernel, launch
from tilewright.ops.elementwise.simt.functions import function_for

THREADS = 256


@cache
def naive(name: str):
    """kernel(x, out). The lowest rung: a load and a store of 4 bytes a thread.

    Loses where 4 bytes a thread are too few on their way to keep the memory busy.
    """
    function = function_for(name)

    @kernel
    def apply(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = function(x[i])

    return apply


@cache
def vectors(name: str):
    """kernel(x, out). A thread loads and stores 16 bytes; the last numbers, fewer than four, one at a time.

    Loses where the function's float64 operations take longer than its bytes, and where there are few numbers.
    """
    function = function_for(name)

    @kernel
    def apply(x, out):
        i = 4 * cuda.grid(1)
        if i + 4 <= x.size:
            four = load4(x, i)
            store4(out, i, (function(four[0]), function(four[1]), function(four[2]), function(four[3])))
        else:
            for j in range(i, x.size):
                out[j] = function(float32(x[j]))

    return apply


KERNELS = {"naive": (naive, 1), "vectors": (vectors, 4)}  # kernel for a function, elements per thread


def run(function: str, x, out, *, kernel: str) -> None:
    """out = function(x), both contiguous float32. kernel: a key of KERNELS."""
    create, each = KERNELS[kernel]
    launch(create(function), -(-x.numel() // (THREADS * each)), THREADS, (x.view(-1), out.view(-1)))
