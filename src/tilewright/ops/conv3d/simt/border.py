"""Which number stands at a position beyond a volume's border: the rule of `operands.index_map`, asked by a thread."""

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
def place(at, n, mode):
    """Which of an axis' n numbers, n > 0, stands at position `at`; -1 for none."""
    while not 0 <= at < n:  # once, but for volumes smaller than a window: no division, which is a subroutine
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
        else:  # mirror: the ends stand once
            at = -at if at < 0 else 2 * n - 2 - at
    return at
