"""pool in numba-cuda: out[i, c] = the sum of x[t, c] over the rows of text i, divided by their number.

x: float32 (R, C), out: float32 (n, C). A range that is not inside x makes its row NaN. One thread per element of out;
neighbours read neighbouring columns. Each load waits for the addition before it, so long texts keep few loads in
flight.
"""

from numba import cuda, float32, float64

from tilewright.ops.core.gpu.simt import kernel, launch

THREADS = 256
NAN = float32(float("nan"))


@kernel
def columns(x, begin, end, out):
    """One thread per element of out. Sums are float64, in the order of the rows."""
    at, C = cuda.grid(1), x.shape[1]
    i, c = at // C, at % C
    if i < out.shape[0]:
        start, stop = begin[i], end[i]
        if start < 0 or start >= stop or stop > x.shape[0]:
            out[i, c] = NAN
        else:
            total = float64(0)
            for t in range(start, stop):
                total += float64(x[t, c])
            out[i, c] = float32(total / float64(stop - start))


def run(x, begin, end, out) -> None:
    """Launch `columns` on tensors; rows that lie apart are copied."""
    target = out if out.is_contiguous() else out.contiguous()
    launch(columns, -(-target.numel() // THREADS), THREADS, (x.contiguous(), begin, end, target))
    if target is not out:
        out.copy_(target)
