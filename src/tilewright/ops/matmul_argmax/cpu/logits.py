"""matmul writes the products of some rows of a @ b, then NumPy finds the largest of each row.

It is slower than the other rungs, which never store the products: writing and reading them takes time.
"""

import numpy as np

from tilewright.ops.core.memory import empty
from tilewright.ops.matmul import matmul
from tilewright.ops.matmul_argmax.operands import Prepared

LOGITS_BYTES = 16 << 20  # most bytes of products held at once


def search(a: np.ndarray, prepared: Prepared, index: np.ndarray, value: np.ndarray) -> None:
    """index, value (M,) of the largest element of each row of a @ prepared.weights."""
    step = max(1, LOGITS_BYTES // (4 * prepared.weights.N))
    out = empty((min(step, len(a)), prepared.weights.N))
    for i in range(0, len(a), step):
        rows = a[i : i + step]
        products = matmul(rows, prepared.weights, out=out[: len(rows)])
        index[i : i + step] = best = products.argmax(axis=1)
        value[i : i + step] = products[np.arange(len(rows)), best]
