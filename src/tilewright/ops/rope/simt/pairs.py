"""rope in numba-cuda: with a and b the halves of a head's rotated part, a cos - b sin, b cos + a sin.

x and out: float32 (rows, heads * D), rows contiguous; out may be x. positions: int32 or int64 (rows,); one that the
table has not makes its row NaN. One thread per pair of elements, or per element that is not rotated; neighbours read
neighbouring elements. Memory bandwidth is the limit: 8 bytes per element.
"""

import math

from numba import cuda, float32

from tilewright.ops.core.gpu.simt import inline, kernel, launch

THREADS = 256
NAN = float32(float("nan"))


@inline
def part_of(at, F, D):
    """(head, element of the head's first half or of its rest) of the thread that is number `at` of a row."""
    own = D - F  # threads of a head: F pairs, and the rest
    return at // own, at % own


@inline
def write(x, out, i, first, c, F, cos, sin):
    """The pair c of the head that starts at element `first`, turned; an element of the rest, copied. sin is NaN for a
    position that there is not."""
    if c < F:
        a, b = x[i, first + c], x[i, first + c + F]
        out[i, first + c] = a * cos - b * sin
        out[i, first + c + F] = b * cos + a * sin
    else:
        out[i, first + c + F] = x[i, first + c + F] if sin == sin else NAN


@kernel
def naive(x, positions, frequencies, turns, out, heads):
    """Each thread computes its cosine and sine, and threads of other heads the same ones. It is the lowest rung."""
    F, D, at = frequencies.shape[0], x.shape[1] // heads, cuda.grid(1)
    threads = heads * (D - F)
    i = at // threads
    if i < x.shape[0]:
        h, c = part_of(at % threads, F, D)
        known = 0 <= positions[i] < turns.shape[0]
        angle = float32(positions[i]) * frequencies[min(c, F - 1)] if known else NAN
        write(x, out, i, h * D, c, F, float32(math.cos(angle)), float32(math.sin(angle)))


@kernel
def table(x, positions, frequencies, turns, out, heads):
    """Each thread reads its cosine and sine, which the threads of other heads leave in a cache."""
    F, D, at = frequencies.shape[0], x.shape[1] // heads, cuda.grid(1)
    threads = heads * (D - F)
    i = at // threads
    if i < x.shape[0]:
        h, c = part_of(at % threads, F, D)
        position, pair = positions[i], min(c, F - 1)
        known = 0 <= position < turns.shape[0]
        w = turns[position, pair] if known else NAN
        v = turns[position, F + pair] if known else NAN
        write(x, out, i, h * D, c, F, w, v)


KERNELS = {"naive": naive, "table": table}


def run(x, positions, rotation, heads: int, out, *, kernel: str) -> None:
    """Launch a kernel on tensors; rows that lie apart are copied. kernel: a key of KERNELS."""
    threads, target = len(x) * (x.shape[1] - heads * rotation.pairs), out if out.is_contiguous() else out.contiguous()
    launch(KERNELS[kernel], -(-threads // THREADS), THREADS, (x.contiguous(), positions, *rotation, target), heads)
    if target is not out:
        out.copy_(target)
