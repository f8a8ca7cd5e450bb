"""The noise of a generator: each image has its own, which does not depend on the other images."""

import numpy as np


def noise(seed: int, first: int, count: int, width: int) -> np.ndarray:
    """float32 (count, width) from N(0, 1) for the images from number `first` on.

    It comes from Philox, a counter-based generator, with the key (seed, number of the image). An image's noise depends
    on nothing else. seed: from 0 to 2**63 - 1.
    """
    rows = np.empty((count, width), np.float32)
    bits = np.random.Philox(key=(seed, first))
    state, draw = bits.state, np.random.Generator(bits).standard_normal
    for i, row in enumerate(rows, start=first):
        state["state"]["key"][1] = i
        bits.state = state  # setting the state takes a third of the time of a new generator
        draw(out=row, dtype=np.float32)
    return rows
