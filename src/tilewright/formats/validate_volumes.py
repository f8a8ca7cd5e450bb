"""The check of volumes in any two formats: the first voxel that fails and the worst one."""

from __future__ import annotations

import os
import re

import numpy as np

from tilewright.errors import InputError
from tilewright.formats.files import InputFile
from tilewright.formats.names import suffix_of
from tilewright.formats.npy import read_header
from tilewright.formats.validate import Validation, _judge
from tilewright.formats.volume_formats import open_volume
from tilewright.formats.volumes import aligned_boxes

TOLERANCE = 1e-4  # the course's
MOST = 1 << 20  # voxels compared at a time, or a chunk


def validate_volumes(
    output: str | os.PathLike[str], reference: str | os.PathLike[str], *, tolerance: float = TOLERANCE
) -> Validation:
    """Compares two volumes of any of the formats that `open_volume` reads.

    A voxel passes if its absolute or its relative error is at most `tolerance`. Raises as `open_volume`.
    """
    result = Validation()
    with (
        open_volume(os.fspath(output), "output") as a,
        open_volume(os.fspath(reference), "reference") as b,
    ):
        a.finite = b.finite = False  # what is not finite fails
        if a.shape != b.shape:
            result.fail(f"the output is {a.shape} and the reference {b.shape}")
            return result
        dtype = np.float64 if a.wide or b.wide else np.float32
        for box in aligned_boxes((0, 0, 0), a.shape, a.unit, MOST):
            start, shape = [s.start for s in box], [s.stop - s.start for s in box]
            pair = np.empty((2, *shape), dtype)
            for volume, values in zip((a, b), pair, strict=True):
                volume.read_into(tuple(start), values)  # type: ignore[arg-type]
            _judge(
                result,
                pair.reshape(2, -1),
                tolerance,
                lambda i, start=start, shape=shape: _name(i, start, shape),
            )
    return result


def is_volume(path: str | os.PathLike[str]) -> bool:
    """Whether the name, and for .npy and .txt the beginning of the file, are those of a volume."""
    path = os.fspath(path)
    suffix = suffix_of(path)
    if suffix not in (".npy", ".txt"):
        return suffix is not None
    try:
        with InputFile(path, "file") as file:
            if suffix == ".npy":
                return len(read_header(file).shape) == 3
            head = bytearray(min(file.size, 256))
            file.read_into(head, 0)
            return re.match(rb"\d+ +\d+ +\d+ +[\d.+-]", head) is not None  # one line; other files begin with a count
    except InputError:
        return False


def _name(i: int, start: list[int], shape: list[int]) -> str:
    return f"voxel {[int(a + b) for a, b in zip(start, np.unravel_index(i, shape), strict=True)]}"
