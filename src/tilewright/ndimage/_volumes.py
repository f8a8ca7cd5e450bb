"""float32 volumes that stay float32 are filtered by `tilewright.ops.conv3d`, which sums in float32.

float32 cannot represent some results. If a result is infinite or NaN, because the input is or because a sum overflowed,
the element of the float64 operation replaces it.

A small volume takes less time than preparing the weights and the launch. So a few prepared weights are cached by their
content, and a call that is like the last one with the same weights runs its recorded launch (`ops/conv3d/memo.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilewright.ndimage._arguments import real_of
from tilewright.ops.core.ladder import any_forced

if TYPE_CHECKING:
    from tilewright.ops.conv3d import Packed

# Between these sizes a weight keeps its 24 bits, and a sum of products rarely overflows.
LEAST, MOST = 2.0**-126, 2.0**100
# Up to so many taps per pass, three passes in one tile are faster than three passes over the array, see
# docs/lab/correlate.md.
LONGEST = 33
CACHED, SMALL = 8, 1 << 13  # prepared weights that are cached, and the most elements of each
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
    packed = _packed([weights.astype(np.float32)])
    _convolve(input, packed, output, mode, cval, origins if any(origins) else 0, again)


def separable(input, factors: list[np.ndarray], output, mode: str, cval: float, again: Again) -> None:
    """A kernel that is the outer product of `factors`, one per axis."""
    _convolve(input, _packed(factors), output, mode, cval, 0, again)


def _packed(arrays: list[np.ndarray]) -> Packed:
    """Prepared weights: of one array (KD, KH, KW), or of three factors.

    Small ones are cached. Not so with a forced rung, because another one is chosen later; nor those of an array in
    another order, whose factors may differ in the last bit.
    """
    whole = arrays[0] if len(arrays) == 1 else None
    in_order = whole is None or whole.flags.c_contiguous
    if any_forced() or not in_order or sum(array.size for array in arrays) > SMALL:
        return _prepared(arrays)
    return _cached(tuple((array.tobytes(), array.dtype.str, array.shape) for array in arrays))


@functools.lru_cache(maxsize=CACHED)
def _cached(contents: tuple[tuple[bytes, str, tuple[int, ...]], ...]) -> Packed:
    return _prepared([np.frombuffer(content, dtype).reshape(shape) for content, dtype, shape in contents])


def _prepared(arrays: list[np.ndarray]) -> Packed:
    from tilewright.ops.conv3d import prepare, prepare_separable

    return prepare(arrays[0]) if len(arrays) == 1 else prepare_separable(arrays)


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
