"""Products of Fourier transforms, a block of the volume at a time (overlap-save), in float64 by scipy.fft.

Its time hardly depends on the kernel's size, so it wins for large kernels that are not separable. Its bits depend on
where the blocks lie, so tiles of a volume differ from the whole in the last bits, and it is taken only when it is
forced. Errors are 1e-16 of the largest number in a block, which is within the bound
while a block's numbers span less than eight decades. An infinity or NaN would spread over its block: it is refused.

Source: Oppenheim and Schafer, "Discrete-Time Signal Processing", chapter 8.
"""

import itertools

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.conv3d.cpu.naive import padded
from tilewright.ops.conv3d.operands import Border, Packed
from tilewright.ops.core.launch import thread_count

BLOCK = 4  # kernels long: (3/4)**3 of a block's outputs count, and it is not yet far larger than a cache
SHORTEST = 32  # numbers, however short the kernel


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, border: Border) -> None:
    """The rung's run function."""
    from scipy import fft

    wide, kernel, threads = padded(x, border)[0], weights.weights[0, 0], thread_count()
    if not np.isfinite(wide).all():
        raise UsageError("conv3d: x has a number that is not finite, and cpu.fft takes none: choose another rung")
    blocks = [min(max(BLOCK * K, SHORTEST), n) for K, n in zip(kernel.shape, wide.shape, strict=True)]
    shape = [fft.next_fast_len(n, real=True) for n in blocks]
    spectrum = fft.rfftn(kernel.astype(np.float64), shape, workers=threads).conj()
    steps = [n - K + 1 for n, K in zip(blocks, kernel.shape, strict=True)]
    for corner in itertools.product(*(range(0, n, step) for n, step in zip(out.shape[1:], steps, strict=True))):
        ends = [min(at + step, n) for at, step, n in zip(corner, steps, out.shape[1:], strict=True)]
        seen = tuple(slice(at, end + K - 1) for at, end, K in zip(corner, ends, kernel.shape, strict=True))
        product = fft.rfftn(wide[seen].astype(np.float64), shape, workers=threads) * spectrum
        found = fft.irfftn(product, shape, workers=threads)
        inner = tuple(slice(0, end - at) for at, end in zip(corner, ends, strict=True))
        out[(0, *(slice(at, end) for at, end in zip(corner, ends, strict=True)))] = found[inner]
