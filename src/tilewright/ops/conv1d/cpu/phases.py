"""x for the kernels: zeros written out where padding is, and positions that are read together side by side.

Outputs `stride` apart, or taps `dilation` apart, would read every n-th number of x. Cut into n phases - position i
becomes number i // n of phase i % n - they read consecutive ones, as with a stride of 1. It is the split of a polyphase
filter (Crochiere and Rabiner, 1983).
"""

import numpy as np


def phased(x: np.ndarray, padding: int, phases: int, *, beyond: int = 0) -> tuple[np.ndarray, int]:
    """(flat float32 copy, row): x (B, C, L) between zeros as (B, C, phases, row), then `beyond` zeros to be read."""
    B, C, L = x.shape
    row = -(-(L + 2 * padding) // phases)
    flat = np.zeros(B * C * phases * row + beyond, np.float32)
    split = flat[: flat.size - beyond].reshape(B, C, phases, row)
    for first in range(min(phases, L)):  # positions first, first + phases ... of x belong to one phase
        at, phase = divmod(padding + first, phases)
        some = x[:, :, first::phases]
        split[:, :, phase, at : at + some.shape[2]] = some
    return flat, row
