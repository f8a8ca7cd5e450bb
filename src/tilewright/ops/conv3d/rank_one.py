"""Is a kernel the outer product of three vectors? By singular value decomposition, then a check of every tap.

A kernel of rank one costs KD + KH + KW products an output in place of KD * KH * KW. The leading singular vectors are
refined by one step of alternating least squares: its sums have terms of one sign, so that each factor is accurate to
its smallest element, and a slab of zero taps gives an exact zero.
"""

import numpy as np

# of a tap's own size: as far as a product of float32 factors may be from it. Kernels that are float32 roundings of a
# product came within 2.5 eps32 (3,000 random ones); 4 eps32 * (|x| conv |w|) is 0.8 of the bound of a 3 x 3 x 3 kernel
TOLERANCE = 4 * float(np.finfo(np.float32).eps)


def factors_of(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """float32 (wz, wy, wx) with wz[a] * wy[b] * wx[t] within TOLERANCE of every weights[a, b, t], or None.

    weights: (KD, KH, KW). None, too, where fewer than two axes have more than one tap: there is nothing to separate.
    wy and wx have absolute sums of 1, so that no intermediate result is larger than the volume's largest number.
    """
    w = weights.astype(np.float64)
    if sum(K > 1 for K in w.shape) < 2 or not np.isfinite(w).all() or not w.any():
        return None
    _, _, rows = np.linalg.svd(w.reshape(len(w), -1), full_matrices=False)
    left, _, right = np.linalg.svd(rows[0].reshape(w.shape[1:]), full_matrices=False)
    wy, wx = left[:, 0], right[0]
    wz = np.einsum("abt,b,t->a", w, wy, wx)
    wy = np.einsum("abt,a,t->b", w, wz, wx)
    wx = np.einsum("abt,a,b->t", w, wz, wy)
    wy, wx = wy / np.abs(wy).sum(), wx / np.abs(wx).sum()
    scale = np.einsum("b,t->bt", wy, wx)
    wz = np.einsum("abt,bt->a", w, scale) / (scale**2).sum()
    found = tuple(factor.astype(np.float32) for factor in (wz, wy, wx))
    near = np.abs(product_of(found) - w) <= TOLERANCE * np.abs(w)
    return found if near.all() else None


def product_of(factors: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    """float64 (KD, KH, KW): the outer product."""
    return np.einsum("a,b,t->abt", *factors, dtype=np.float64)
