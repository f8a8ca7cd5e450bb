"""A padded copy of x for the kernels, in which positions that are read together are adjacent.

Outputs `stride` apart, or taps (elements of the filter) `dilation` apart, would read every n-th element of x. So the
padded x is cut into n phases: its element i becomes element i // n of phase i % n. Kernels then read consecutive
elements, as with a stride of 1. This is the split of a polyphase filter (Crochiere and Rabiner, 1983).
"""

import numpy as np


def phased(x: np.ndarray, padding: int, phases: int, *, beyond: int = 0) -> tuple[np.ndarray, int]:
    """(flat float32 copy, row): the padded x (B, C, L) as (B, C, phases, row), then `beyond` zeros.

    padding: zeros before and after L. row: elements of a phase, rounded up. beyond: vector loads may read this far past
    the end.
    """
    B, C, L = x.shape
    row = -(-(L + 2 * padding) // phases)
    flat = np.zeros(B * C * phases * row + beyond, np.float32)
    split = flat[: flat.size - beyond].reshape(B, C, phases, row)
    for first in range(min(phases, L)):  # elements first, first + phases ... of x are one phase
        at, phase = divmod(padding + first, phases)
        elements_of_phase = x[:, :, first::phases]
        split[:, :, phase, at : at + elements_of_phase.shape[2]] = elements_of_phase
    return flat, row
