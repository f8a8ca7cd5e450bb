"""Which number stands beyond a volume's border, for tiles of positions: the rule of `operands.index_map`."""

import triton
import triton.language as tl


@triton.jit
def _modulo(at, n):
    """at modulo n, at least 0."""
    rest = at % n
    return tl.where(rest < 0, rest + n, rest)


@triton.jit
def place(at, n, MODE: tl.constexpr):
    """Which of an axis' n numbers, n > 0, stands at positions `at`; -1 for none."""
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
