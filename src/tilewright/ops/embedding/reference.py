"""What embedding computes, in NumPy: out[..., :] = table[ids[...]] + position_table[positions[...]]."""

import numpy as np


def embedding(ids, table, positions=None, position_table=None):
    """Rows of table (V, C) picked by ids (...), and added to them those of position_table (P, C) picked by positions
    (...), if there are any: (..., C), float64."""
    rows = np.asarray(table, np.float64)[np.asarray(ids)]
    return rows if positions is None else rows + np.asarray(position_table, np.float64)[np.asarray(positions)]
