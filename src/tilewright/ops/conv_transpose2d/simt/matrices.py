"""Rows of pixels by matmul's SIMT kernels: one product over x with zeros between its pixels, or one a phase.

Rows are windows of x, copied side by side for some images at a time; how many does not change a row's bits.
"""

from tilewright.ops.conv_transpose2d.fill import fill
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.core.ladder import preferring
from tilewright.ops.matmul import matmul, prepare

PRODUCT = "simt.buffered"  # the rung of matmul, unless `using` forces another
MATRIX_BYTES = 1 << 28  # of rows at a time


def pack_matrix(weights, rows: Axis, columns: Axis, rung: str, dtype: str) -> Packed:
    """weights (KH, KW, O, C) as matmul's b (KH * KW * C, O), taps in reverse."""
    KH, KW, O, C = weights.shape
    turned = weights.flip(0, 1).permute(0, 1, 3, 2).reshape(KH * KW * C, O)
    with preferring(matmul=PRODUCT):
        return Packed(rung, O, C, rows, columns, "float32", prepare(turned.float().contiguous()))


def pack_phases(weights, rows: Axis, columns: Axis, rung: str, dtype: str) -> Packed:
    """A matrix (taps * C, O) for each phase (i, j), taps ascending in the input that they meet."""
    O, C = weights.shape[2:]
    packed = {}
    with preferring(matmul=PRODUCT):
        for i in rows.phases:
            for j in columns.phases:
                down, across = ([k for _, k in axis.taps(at)] for axis, at in ((rows, i), (columns, j)))
                own = weights[down][:, across].permute(0, 1, 3, 2).reshape(-1, O)
                packed[i, j] = prepare(own.float().contiguous())
    return Packed(rung, O, C, rows, columns, "float32", packed)


def zero_inserted(x, weights: Packed, out, epilogue: Epilogue) -> None:
    """out = x with stride - 1 zeros between its pixels, convolved as any image is, by the kernel turned round.

    Against a thread an output: the sums are a matrix product, at its speed. Loses to the phases because most of its
    multiplications are by the zeros: at stride 2 three of four.
    """
    (_, H, W, C), (_, OH, OW, _), rows, columns = x.shape, out.shape, weights.rows, weights.columns
    least = rows.K - 1 - rows.first, columns.K - 1 - columns.first
    height, width = (H - 1) * rows.stride + 1, (W - 1) * columns.stride + 1
    for some in _images(len(x), 4 * OH * OW * weights.data.K):
        spread = x.new_zeros(len(x[some]), height, width, C)
        spread[:, :: rows.stride, :: columns.stride] = x[some]
        matrix = _windows(spread, (-least[0], -least[1]), (rows.K, columns.K), (OH, OW))
        out[some] = _multiply(matrix, weights.data, epilogue).view(-1, *out.shape[1:])


def phases(x, weights: Packed, out, epilogue: Epilogue) -> None:
    """out's phases, each the product of the windows that its own taps see.

    Against one product over zeros: a quarter of the multiplications at stride 2, in four launches. Loses where an image
    is so small that one of them leaves most of the GPU idle.
    """
    rows, columns = weights.rows, weights.columns
    fill(out, weights, epilogue)
    for (i, j), matrix in weights.data.items():
        place = out[:, i :: rows.stride, j :: columns.stride]
        size = tuple(place.shape[1:3])
        if 0 in size:
            continue
        down, across = rows.taps(i), columns.taps(j)
        for some in _images(len(x), 4 * size[0] * size[1] * matrix.K):
            windows = _windows(x[some], (down[0][0], across[0][0]), (len(down), len(across)), size)
            place[some] = _multiply(windows, matrix, epilogue).view(-1, *size, out.shape[3])


def _images(count: int, row_bytes: int):
    step = max(1, MATRIX_BYTES // max(row_bytes, 1))
    return (slice(first, first + step) for first in range(0, count, step))


def _windows(x, first: tuple[int, int], window: tuple[int, int], size: tuple[int, int]):
    """(n * OH * OW, KH * KW * C): row (b, r, q) holds x[b, r + first[0] + a, q + first[1] + c] for each (a, c), zeros
    outside."""
    n, H, W, C = x.shape
    matrix = x.new_zeros(n, *size, *window, C)
    for a in range(window[0]):
        r0, r1 = _inside(first[0] + a, H, size[0])
        for c in range(window[1]):
            q0, q1 = _inside(first[1] + c, W, size[1])
            if r0 < r1 and q0 < q1:
                h, w = first[0] + a, first[1] + c
                matrix[:, r0:r1, q0:q1, a, c] = x[:, r0 + h : r1 + h, q0 + w : q1 + w]
    return matrix.view(n * size[0] * size[1], window[0] * window[1] * C)


def _inside(offset: int, n: int, size: int) -> tuple[int, int]:
    """The outputs whose input, `offset` further, is one of n."""
    return max(0, -offset), min(size, n - offset)


def _multiply(matrix, weights, epilogue: Epilogue):
    bias = epilogue.bias if epilogue.bias.numel() else None
    with preferring(matmul=PRODUCT):
        return matmul(matrix, weights, bias=bias, activation=epilogue.activation)
