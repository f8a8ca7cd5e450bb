"""The comparison of volumes in any two formats. It names the first voxel that fails and the worst one.

A filter sums products, and float32 rounds each sum relative to the products, not to the result. So the error of a voxel
near zero is as large as that of its neighbours, and a relative error per voxel would refuse correct results. One bound
applies to the whole volume: `tolerance` times the largest absolute value of the reference. The expected error of
float32 is sqrt(taps) * eps32 * sum(|weight| * |value|), with eps32 = 6e-8. That is 1e-6 of the result for 270 taps
whose weights do not cancel. The weights of laplace cancel: on a blob with a standard deviation of 10 voxels the sum is
400 times the result, and the error was 1e-5 of it. TOLERANCE is five times that, and still refuses noise of 1e-4.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.errors import InputError
from tilewright.formats.files import InputFile
from tilewright.formats.names import suffix_of
from tilewright.formats.npy import read_header
from tilewright.formats.validate import Validation, judge
from tilewright.formats.volume_formats import open_volume
from tilewright.formats.volumes import Box, Volume, aligned_boxes

TOLERANCE = 5e-5
TEXT_ROUNDING = 5.1e-7  # half of the sixth decimal of a .txt file, and the rounding to float
MOST = 1 << 20  # voxels that are compared at a time, unless a chunk has more


@dataclass
class VolumeValidation(Validation):
    """The result for volumes. error: the largest absolute error; NaN counts as infinite.

    scale: the largest finite absolute value of the reference, 1 if all are zero. limit: the error that is allowed.
    """

    tolerance: float = TOLERANCE
    scale: float = 1.0
    limit: float = 0.0

    @property
    def detail(self) -> str:
        """One line: the first failure, how much was compared, the worst voxel, and the rule."""
        if not self.checked:
            return super().detail
        scale = f"{self.tolerance:g} of {self.scale:.6g}, the largest absolute value of the reference"
        text = ", and the rounding of a .txt" if self.limit > self.tolerance * self.scale else ""
        return f"{super().detail}; at most {self.limit:.3g} is allowed: {scale}{text}"


def validate_volumes(
    output: str | os.PathLike[str], reference: str | os.PathLike[str], *, tolerance: float = TOLERANCE
) -> VolumeValidation:
    """Compare two volumes of any of the formats that `open_volume` reads.

    A voxel passes if its absolute error is at most `tolerance` times the largest absolute value of the reference. Each
    .txt file may add the error of rounding to six decimals. NaN and infinity fail. Raises as `open_volume`.
    """
    result = VolumeValidation(tolerance=tolerance)
    with (
        open_volume(os.fspath(output), "output") as a,
        open_volume(os.fspath(reference), "reference") as b,
    ):
        a.finite = b.finite = False  # values that are not finite fail instead of raising an error
        if a.shape != b.shape:
            result.fail(f"the output is {a.shape} and the reference {b.shape}")
            return result
        dtype = np.float64 if a.wide or b.wide else np.float32
        boxes = list(aligned_boxes((0, 0, 0), a.shape, a.unit, MOST))
        result.scale = max(_largest(_read(b, box, dtype)) for box in boxes) or 1.0
        result.limit = tolerance * result.scale + TEXT_ROUNDING * sum(suffix_of(v.path) == ".txt" for v in (a, b))
        for box in boxes:
            found, expected = _read(a, box, dtype), _read(b, box, dtype)
            with np.errstate(invalid="ignore", over="ignore"):
                error = np.abs(found.astype(np.float64) - expected)
            pair = np.stack([found.reshape(-1), expected.reshape(-1)])
            judge(result, pair, error.reshape(-1), result.limit, partial(_name, box))
    return result


def _read(volume: Volume, box: Box, dtype: type[np.floating]) -> np.ndarray:
    """The values of a box, (d, h, w)."""
    values = np.empty([s.stop - s.start for s in box], dtype)
    volume.read_into((box[0].start, box[1].start, box[2].start), values)
    return values


def _largest(values: np.ndarray) -> float:
    """The largest finite absolute value; 0 if there is none."""
    return float(np.abs(values).max(initial=0.0, where=np.isfinite(values)))


def is_volume(path: str | os.PathLike[str]) -> bool:
    """Whether the name, and for .npy and .txt also the beginning of the file, are those of a volume."""
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
            return re.match(rb"\d+ +\d+ +\d+ +[\d.+-]", head) is not None  # on one line; other files begin with a count
    except InputError:
        return False


def _name(box: Box, i: int) -> str:
    shape = [s.stop - s.start for s in box]
    return f"voxel {[int(s.start + n) for s, n in zip(box, np.unravel_index(i, shape), strict=True)]}"
