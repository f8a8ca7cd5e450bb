"""What the SIMT kernels can take; the ladder refuses more."""

import math

MOST_TAPS = 343  # of a kernel whose weights are parameters of the kernel, all written out in its code
MOST_PLANES = 7  # of a kernel, which are as many open sums for each output of a thread
TILE = (2, 4, 32)  # of outputs, along z, y and x: a warp lies along a row, so that its loads meet in no bank


def halo_bytes(sizes: tuple[int, int, int]) -> int:
    """Bytes of a tile of `shared` with its halo, for a kernel (KD, KH, KW)."""
    return 4 * math.prod(tile + K - 1 for tile, K in zip(TILE, sizes, strict=True))
