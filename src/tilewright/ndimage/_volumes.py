"""float32 volumes that stay float32 are filtered by `tilewright.ops.conv3d`, which sums in float32.

float32 cannot represent some results. If a result is infinite or NaN, because the input is or because a sum overflowed,
the element of the float64 operation replaces it.
"""

from collections.abc import Callable

import numpy as np

from tilewright.ndimage._arguments import real_of

# Between these sizes a weight keeps its 24 bits, and a sum of products rarely overflows.
LEAST, MOST = 2.0**-126, 2.0**100
# Up to so many taps per pass, three passes in one tile are faster than three passes over the array, see
# docs/lab/correlate.md.
LONGEST = 33
THICK = 16  # conv3d's blocks have 16 rows, and for separable kernels 16 planes: fewer take as long as 16

Again = Callable[[np.ndarray], object]  # filters the input in float64 into the given array


def in_float32(input: np.ndarray, output: np.ndarray, weights: list[np.ndarray], cval) -> bool:
    """True if `tilewright.ops.conv3d` can do this and is likely to be faster."""
    if not (input.dtype == output.dtype == np.float32 and input.size and _is_thick(input.shape)):
        return False
    sizes = np.abs(np.concatenate([w.ravel() for w in weights]))
    sizes = sizes[sizes != 0]
    representable = bool(np.all((sizes >= LEAST) & (sizes <= MOST)))
    return representable and not MOST < abs(real_of(cval)) < np.inf


def _is_thick(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and min(shape[:2]) >= THICK


def dense(input, weights: np.ndarray, output, mode: str, cval: float, origins: list[int], again: Again) -> None:
    """A kernel with as many dimensions as input."""
    from tilewright.ops.conv3d import prepare

    _convolve(input, prepare(weights.astype(np.float32)), output, mode, cval, origins, again)


def separable(input, factors: list[np.ndarray], output, mode: str, cval: float, again: Again) -> None:
    """A kernel that is the outer product of `factors`, one per axis."""
    from tilewright.ops.conv3d import prepare_separable

    _convolve(input, prepare_separable(factors), output, mode, cval, 0, again)


def _convolve(input, packed, output, mode, cval, origin, again: Again) -> None:
    from tilewright.ops.conv3d import conv3d
    from tilewright.ops.core.finite import all_finite

    target = np.empty(input.shape, np.float32) if np.may_share_memory(input, output) else output
    conv3d(input, packed, mode=mode, cval=cval, origin=origin, out=target)
    if not all_finite(target):
        exact = np.empty(input.shape, np.float32)
        again(exact)
        np.copyto(target, exact, where=~np.isfinite(target))
    if target is not output:
        output[...] = target
