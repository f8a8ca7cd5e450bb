"""The course's comparison of images, text or .npy. It names the first element that fails and the worst, by image and
pixel."""

from __future__ import annotations

import math
import os
import re
from functools import partial

import numpy as np

from tilewright.errors import InputError
from tilewright.formats.files import InputFile
from tilewright.formats.npy import read_header
from tilewright.formats.tables import open_table, read_fields, suffix
from tilewright.formats.validate import TOLERANCE, Validation, errors, judge

BATCH_NUMBERS = 1 << 20  # numbers that are compared at a time
HEAD = 32  # the most bytes of a count and its line end

Shape = tuple[int, ...]


def validate_images(
    output: str | os.PathLike[str],
    reference: str | os.PathLike[str],
    *,
    shape: Shape | None = None,
    tolerance: float = TOLERANCE,
    prefix: bool = False,
) -> Validation:
    """Compare two .txt or .npy files of images. One of each kind is possible, too.

    An element passes if its absolute or its relative error is at most `tolerance`; NaN fails. shape: of an image,
    (height, width, channels); None: taken from the files. prefix: the reference may have more images than the output.
    Raises InputError for a file that has no such images.
    """
    shape = shape or _common_shape(output, reference)
    result, size = Validation(), max(1, BATCH_NUMBERS // math.prod(shape))
    with (
        open_table(output, shape=shape, what="output", checked=False) as a,
        open_table(reference, shape=shape, what="reference", checked=False) as b,
    ):
        if a.total > b.total or (a.total < b.total and not prefix):
            result.fail(f"the output has {a.total:,} images and the reference {b.total:,}")
        first = 0
        for found, wanted in zip(a.batches(size), b.batches(size), strict=False):
            n = min(len(found.values), len(wanted.values))
            pair = np.stack([found.values[:n].reshape(-1), wanted.values[:n].reshape(-1)])
            judge(result, pair, errors(*pair), tolerance, partial(_name, first, shape))
            first += n
    return result


def holds_images(path: str | os.PathLike[str]) -> bool:
    """Whether a file looks like images: a .npy of four dimensions, or a .txt whose first line is one integer. False for
    a file that is missing or damaged."""
    try:
        with InputFile(path, "file") as file:
            if suffix(path) == ".npy":
                return len(read_header(file).shape) == 4
            head = bytearray(min(HEAD, file.size))
            file.read_into(head, 0)
            return suffix(path) == ".txt" and re.match(rb"\s*\d+[ \t\r]*\n", head) is not None
    except InputError:
        return False


def _common_shape(*paths: str | os.PathLike[str]) -> Shape:
    """The shape of an image: three dimensions if one of the files is .npy. Raises InputError if the files differ."""
    shapes = [_shape(path) for path in paths]
    if math.prod(shapes[0]) != math.prod(shapes[1]):
        sizes = " and ".join(f"{math.prod(shape):,}" for shape in shapes)
        raise InputError(f"the images have {sizes} values each; only images of one size can be compared", path=paths[0])
    return max(shapes, key=len)


def _shape(path: str | os.PathLike[str]) -> Shape:
    with InputFile(path, "file") as file:
        if suffix(path) == ".npy":
            return read_header(file).shape[1:]
        count, found = 0, -1
        for fields, _ in read_fields(file):
            if found < 0 and fields and re.fullmatch(rb"\d{1,18}", fields[0]):
                count = int(fields[0])
            found += len(fields)
    if count < 1 or found < count or found % count:
        raise InputError(
            f"says that it holds {count} images; the {max(found, 0):,} numbers that follow are no multiple of that",
            path=path,
        )
    return (found // count,)


def _name(first: int, shape: Shape, i: int) -> str:
    image, rest = divmod(i, math.prod(shape))
    names = ("row", "column", "channel") if len(shape) == 3 else ("number",)
    at = np.unravel_index(rest, shape)
    return ", ".join([f"image {first + image}", *(f"{name} {j}" for name, j in zip(names, at, strict=True))])
