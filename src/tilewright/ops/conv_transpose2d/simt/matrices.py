"""matmul's SIMT kernels on rows of pixels: one product over x with zeros between its pixels, or one per phase.

Each row of the left operand is a window of x. It is copied to memory for some images at a time; how many does not
change a row's bits.
"""

import itertools
from typing import NamedTuple

from tilewright.ops.conv_transpose2d.fill import fill_without_taps
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.core.ladder import preferring
from tilewright.ops.matmul import matmul, prepare

PRODUCT = "simt.buffered"  # the rung of matmul, unless `using` forces another
MATRIX_BYTES = 1 << 28  # most bytes of rows at a time


def pack_matrix(weights, rows: Axis, columns: Axis, dtype: str):
    """weights (KH, KW, O, C) as matmul's b (KH * KW * C, O), taps in reverse."""
    reverse = weights.flip(0, 1).permute(0, 1, 3, 2).reshape(-1, weights.shape[2])
    with preferring(matmul=PRODUCT):
        return prepare(reverse.float().contiguous())


def pack_phases(weights, rows: Axis, columns: Axis, dtype: str) -> dict:
    """A matrix (taps * C, O) for each phase (i, j), taps ascending in the input that they meet."""
    packed = {}
    with preferring(matmul=PRODUCT):
        for i, j in itertools.product(rows.phases, columns.phases):
            down, across = [k for _, k in rows.taps(i)], [k for _, k in columns.taps(j)]
            own = weights[down][:, across].permute(0, 1, 3, 2).reshape(-1, weights.shape[2])
            packed[i, j] = prepare(own.float().contiguous())
    return packed


def zero_inserted(x, weights: Packed, out, epilogue: Epilogue) -> None:
    """out = x with stride - 1 zeros between its pixels, convolved as any image is, by the kernel with reversed taps.

    Against one thread per output the sums are a matrix product, at its speed. It is slower than the phases because most
    multiplications are by the inserted zeros: three of four at stride 2.
    """
    (_, H, W, C), (_, OH, OW, _), rows, columns = x.shape, out.shape, weights.rows, weights.columns
    down = Span(1 - rows.K + rows.first, rows.K, OH)
    across = Span(1 - columns.K + columns.first, columns.K, OW)
    height, width = (H - 1) * rows.stride + 1, (W - 1) * columns.stride + 1
    for some in _batches(len(x), 4 * OH * OW * weights.data.K):
        spread = x.new_zeros(len(x[some]), height, width, C)
        spread[:, :: rows.stride, :: columns.stride] = x[some]
        out[some] = _multiply(_windows(spread, down, across), weights.data, epilogue).view(-1, *out.shape[1:])


def phases(x, weights: Packed, out, epilogue: Epilogue) -> None:
    """Each phase of out: the product of the windows that its own taps read.

    Against one product over zeros: a quarter of the multiplications at stride 2, in four launches. It is slow where an
    image is so small that one phase leaves most of the GPU idle.
    """
    rows, columns = weights.rows, weights.columns
    fill_without_taps(out, weights, epilogue)
    for (i, j), matrix in weights.data.items():
        target = out[:, i :: rows.stride, j :: columns.stride]
        _, height, width, O = target.shape
        if 0 in (height, width):
            continue
        down, across = (Span(taps[0][0], len(taps), n)
                        for taps, n in ((rows.taps(i), height), (columns.taps(j), width)))  # fmt: skip
        for some in _batches(len(x), 4 * height * width * matrix.K):
            windows = _windows(x[some], down, across)
            target[some] = _multiply(windows, matrix, epilogue).view(-1, height, width, O)


class Span(NamedTuple):
    """Windows along an axis: `size` of them, of `taps` inputs each; window r begins at input r + first."""

    first: int
    taps: int
    size: int

    def inside(self, tap: int, n: int) -> tuple[slice, slice]:
        """(windows whose tap is one of n inputs, those inputs)."""
        offset = self.first + tap
        begin = max(0, -offset)
        end = max(begin, min(self.size, n - offset))
        return slice(begin, end), slice(begin + offset, end + offset)


def _windows(x, down: Span, across: Span):
    """(n * windows, taps * C): row (b, r, q) has x[b, r + down.first + a, q + across.first + c] for each tap (a, c),
    zeros outside x (n, H, W, C)."""
    n, H, W, C = x.shape
    matrix = x.new_zeros(n, down.size, across.size, down.taps, across.taps, C)
    for a, c in itertools.product(range(down.taps), range(across.taps)):
        (r, h), (q, w) = down.inside(a, H), across.inside(c, W)
        matrix[:, r, q, a, c] = x[:, h, w]
    return matrix.view(n * down.size * across.size, down.taps * across.taps * C)


def _batches(count: int, image_bytes: int):
    """Slices of `count` images, whose rows take MATRIX_BYTES at most, or of one image."""
    step = max(1, MATRIX_BYTES // max(image_bytes, 1))
    return (slice(first, first + step) for first in range(0, count, step))


def _multiply(matrix, weights, epilogue: Epilogue):
    bias = epilogue.bias if epilogue.bias.numel() else None
    with preferring(matmul=PRODUCT):
        return matmul(matrix, weights, bias=bias, activation=epilogue.activation)
