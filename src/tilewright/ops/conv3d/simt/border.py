"""The border's rule for one thread: the index of the element at a position outside a volume (`operands.index_map`)."""

from tilewright.ops.core.gpu.simt import inline

CONSTANT, NEAREST, WRAP, REFLECT, MIRROR = range(5)
CODES = {
    "valid": CONSTANT,  # no window is beyond the border
    "constant": CONSTANT,
    "nearest": NEAREST,
    "wrap": WRAP,
    "reflect": REFLECT,
    "mirror": MIRROR,
}


@inline
def source_index(at, n, mode):
    """Index of the element at position `at` of an axis of n elements, n > 0; -1 for none. mode: a code of CODES."""
    while not 0 <= at < n:  # once, except for volumes smaller than a window: no division, which is a subroutine
        if mode == CONSTANT:
            return -1
        if mode == NEAREST:
            at = 0 if at < 0 else n - 1
        elif mode == WRAP:
            at += n if at < 0 else -n
        elif mode == REFLECT:
            at = -1 - at if at < 0 else 2 * n - 1 - at
        elif n == 1:
            at = 0
        else:  # mirror: the ends are not repeated
            at = -at if at < 0 else 2 * n - 2 - at
    return at
