"""Checks of stride, padding and prepared weights."""

import operator

from tilewright.errors import UsageError
from tilewright.ops.conv_transpose2d.operands import Axis, Packed

MOST = 2**31 - 1  # limit of a stride or a crop: index arithmetic in kernels must not overflow


def axes(kernel: tuple[int, int], stride, padding) -> tuple[Axis, Axis]:
    """Rows and columns of a kernel (KH, KW). Raises UsageError for an invalid stride or padding."""
    pair = stride if isinstance(stride, tuple | list) else (stride, stride)
    crops = padding if isinstance(padding, tuple | list) else ((padding, padding), (padding, padding))
    if len(pair) != 2 or len(crops) != 2 or not all(isinstance(c, tuple | list) and len(c) == 2 for c in crops):
        raise UsageError(
            f"conv_transpose2d: stride is {stride!r} and padding {padding!r}; an integer or (down, across) and an "
            "integer or ((top, bottom), (left, right)) are wanted"
        )
    strides = [_integer("stride", value, 1) for value in pair]
    cropped = [[_integer("padding", value, 0) for value in crop] for crop in crops]
    rows, columns = (Axis(K, s, *crop) for K, s, crop in zip(kernel, strides, cropped, strict=True))
    return rows, columns


def _integer(name: str, value, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise UsageError(f"conv_transpose2d: {name} is {value!r}; an integer is wanted") from error
    if not least <= number <= MOST:
        raise UsageError(f"conv_transpose2d: {name} is {number}; {least} to {MOST} is wanted")
    return number


def check_window(weights: Packed, stride, padding, dtype: str | None) -> None:
    """Raises UsageError if weights were prepared for another stride, padding or dtype; None agrees with all."""
    rows, columns = weights.rows, weights.columns
    if dtype not in (None, weights.dtype):
        raise UsageError(f"conv_transpose2d: dtype is {dtype!r}, but weights was prepared for {weights.dtype}")
    own = (rows.stride, columns.stride), _crops(rows, columns)
    wanted = (own[0] if stride is None else stride), (own[1] if padding is None else padding)
    if (stride, padding) != (None, None) and axes((rows.K, columns.K), *wanted) != (rows, columns):
        raise UsageError(
            f"conv_transpose2d: stride is {wanted[0]} and padding {wanted[1]}, but weights was prepared for a stride "
            f"of {own[0]} and a padding of {own[1]}"
        )


def output_size(rows: Axis, columns: Axis, H: int, W: int) -> tuple[int, int]:
    """(OH, OW) for (H, W) inputs. Raises UsageError if the padding leaves no output."""
    size = rows.size(H), columns.size(W)
    if min(size) < 1:
        full = tuple(n + axis.first + axis.last for n, axis in zip(size, (rows, columns), strict=True))
        raise UsageError(
            f"conv_transpose2d: the padding of {_crops(rows, columns)} crops all of the full result of {full}"
        )
    return size


def _crops(rows: Axis, columns: Axis) -> tuple[tuple[int, int], tuple[int, int]]:
    return (rows.first, rows.last), (columns.first, columns.last)
