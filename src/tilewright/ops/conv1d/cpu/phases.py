"""A padded copy of x for the kernels, in which positions that are read together are adjacent.

Outputs `stride` apart, or taps `dilation` apart, would read every n-th element of x. x is cut into n phases, element i
becomes element i // n of phase i % n, so they read consecutive elements, as with a stride of 1. This is the split of a
polyphase filter (Crochiere and Rabiner, 1983).
"""

import numpy as np


def phased(x: np.ndarray, padding: int, phases: int, *, beyond: int = 0) -> tuple[np.ndarray, int]:
    """(flat float32 copy, row): x (B, C, L) with padding as (B, C, phases, row), then `beyond` zeros."""
    B, C, L = x.shape
    row = -(-(L + 2 * padding) // phases)
    flat = np.zeros(B * C * phases * row + beyond, np.float32)
    split = flat[: flat.size - beyond].reshape(B, C, phases, row)
    for first in range(min(phases, L)):  # elements first, first + phases ... of x are one phase
        at, phase = divmod(padding + first, phases)
        some = x[:, :, first::phases]
        split[:, :, phase, at : at + some.shape[2]] = some
    return flat, row
