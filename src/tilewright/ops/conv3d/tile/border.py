"""The border's rule for tiles of positions: indices of elements outside a volume (`operands.index_map`)."""

import triton
import triton.language as tl


@triton.jit
def _modulo(at, n):
    """at modulo n, at least 0."""
    rest = at % n
    return tl.where(rest < 0, rest + n, rest)


@triton.jit
def source_index(at, n, MODE: tl.constexpr):
    """Indices of the elements at positions `at` of an axis of n elements, n > 0; -1 for none. MODE: a border mode."""
    if MODE == "nearest":
        return tl.minimum(tl.maximum(at, 0), n - 1)
    elif MODE == "wrap":
        return _modulo(at, n)
    elif MODE == "reflect":
        at = _modulo(at, 2 * n)
        return tl.minimum(at, 2 * n - 1 - at)
    elif MODE == "mirror":
        at = _modulo(at, tl.maximum(2 * n - 2, 1))
        return tl.minimum(at, 2 * n - 2 - at)
    else:
        return tl.where((at >= 0) & (at < n), at, -1)
