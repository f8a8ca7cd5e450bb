"""The kernels of `tilewright convolve`: named filters, or weights from a .txt or .npy file."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.errors import InputError, UsageError, suggestion
from tilewright.formats.course_volumes import read_text_kernel
from tilewright.formats.names import axes_of
from tilewright.formats.raw_volumes import open_npy
from tilewright.formats.volumes import Shape
from tilewright.ops.conv3d import conv3d, prepare, prepare_separable
from tilewright.ops.correlate import correlate, correlate1d

NAMES = "gaussian:SIGMA, box:SIZE (both in voxels), laplace, sobel:AXIS, FILE.txt and FILE.npy"
TRUNCATE = 4.0  # radius of a Gaussian in standard deviations, as in scipy.ndimage
MAX_SIZE = 1 << 20  # the most weights of a kernel along an axis
MAX_SIGMA = MAX_SIZE / 2 / TRUNCATE
RULES = {  # for the parameter of each kernel name: the rule, and the remedy
    "gaussian": (
        f"SIGMA is a decimal from 0 and below {MAX_SIGMA:,.0f}, in voxels",
        "give one, as in gaussian:0.5, or one for each axis, as in gaussian:1,2,2. 0 leaves an axis unfiltered. Divide "
        "millimetres by the voxel size",
    ),
    "box": (
        f"SIZE is an integer from 1 to {MAX_SIZE - 1:,}, in voxels",
        "give one, as in box:3, or one for each axis, as in box:1,3,3",
    ),
    "laplace": ("laplace has no parameter", "give laplace alone"),
    "sobel": ("AXIS is 0, 1 or 2", "give one, as in sobel:0"),
}
FUNCTIONS = {"gaussian": "gaussian_filter", "box": "uniform_filter", "laplace": "laplace", "sobel": "sobel"}
MAX_TAPS = 1 << 24  # the most weights of a kernel that is not separable (255 per side): a voxel takes milliseconds
_NUMBER = r"\d{1,9}(?:\.\d{0,9})?"


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel. name: as the user gave it.

    weights: float64 (KD, KH, KW), not flipped. A separable kernel has `lines` instead: float64 (KD,), (KH,) and (KW,),
    whose outer product is the weights.
    """

    name: str
    weights: np.ndarray | None = None
    lines: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    @property
    def shape(self) -> Shape:
        """The number of weights along each axis: (KD, KH, KW)."""
        return self.weights.shape if self.lines is None else tuple(len(line) for line in self.lines)  # type: ignore

    @property
    def taps(self) -> int:
        """Multiplications per voxel."""
        return math.prod(self.shape) if self.lines is None else sum(self.shape)

    @property
    def halo(self) -> tuple[Shape, Shape]:
        """The number of voxels that the kernel reads before and after a voxel, per axis. The centre of K is K // 2."""
        return tuple(K // 2 for K in self.shape), tuple(K - 1 - K // 2 for K in self.shape)  # type: ignore

    @property
    def spare_blocks(self) -> int:
        """The number of float64 blocks that `applied` allocates."""
        return 1 if self.lines is None else 2


def function_of(text: str) -> str | None:
    """The scipy.ndimage function of a kernel's name; None for a file."""
    return None if text.lower().endswith((".txt", ".npy")) else FUNCTIONS.get(text.partition(":")[0])


def default_mode(text: str) -> str:
    """The default boundary mode: the default of SciPy's function for a named filter, zeros for a file."""
    return "reflect" if function_of(text) else "constant"


def kernel_of(text: str) -> Kernel:
    """Make the kernel that `text` names: a filter, or a file of weights, which are checked.

    Names mean the filters of tilewright.ndimage and SciPy. A Gaussian is cut off at 4 standard deviations. A box of
    even size has one more voxel before its centre than after it. sobel is the derivative along its axis, smoothed with
    the weights 1, 2, 1 along the other axes. Raises UsageError with the list of names for an unknown name, and
    InputError for a file without a valid kernel.
    """
    name, colon, value = text.partition(":")
    if text.lower().endswith(".txt"):
        return Kernel(text, read_text_kernel(text).astype(np.float64))
    if text.lower().endswith(".npy"):
        return Kernel(text, _read_npy(text))
    if name == "laplace" and not colon:
        return Kernel(text, _laplace())
    if name == "sobel" and re.fullmatch("[0-2]", value):
        return Kernel(text, lines=_lines([_derivative() if i == int(value) else _smoothing() for i in range(3)]))
    numbers = _numbers(value)
    if name == "gaussian" and numbers and all(0 <= n < MAX_SIGMA for n in numbers):
        return Kernel(text, lines=_lines([_gaussian(sigma) for sigma in numbers]))
    if name == "box" and numbers and all(1 <= n < MAX_SIZE and n == int(n) for n in numbers):
        return Kernel(text, lines=_lines([np.full(int(n), 1 / int(n)) for n in numbers]))
    if name in RULES:
        rule, remedy = RULES[name]
        raise UsageError(f"{text!r} is no kernel: {rule}", remedy=remedy)
    near, remedy = suggestion(name, RULES), f"give one of {NAMES}"
    if os.path.exists(text):
        remedy += ". Name the file .txt or .npy"
    raise UsageError(f"{text!r} is no kernel{near}", remedy=remedy)


def applied(kernel: Kernel, dtype: np.dtype) -> Callable[[np.ndarray, np.ndarray], None]:
    """Returns f(block, out), which filters a block with its halo to out.

    block: (d + KD - 1, h + KH - 1, w + KW - 1). out: (d, h, w). Both are of `dtype`. ops.conv3d computes float32, and
    ops.correlate float64. The bits depend neither on the block's position nor on its size.
    """
    if dtype == np.float32:
        prepared = prepared_float32(kernel)
        return lambda block, out: _put(conv3d(block, prepared, mode="valid", out=out))
    return lambda block, out: _correlate(kernel, block, out)


def prepared_float32(kernel: Kernel, device: str = "cpu"):
    """Prepare the kernel for ops.conv3d on `device`."""
    if kernel.lines is not None:
        return prepare_separable(tuple(line.astype(np.float32) for line in kernel.lines), device=device)
    with np.errstate(over="ignore"):
        weights = kernel.weights.astype(np.float32)  # type: ignore[union-attr]
    if not np.isfinite(weights).all():
        raise InputError("a tap is too large for float32", path=kernel.name, remedy="scale it, or use --dtype float64")
    return prepare(weights, device=device)


def _put(result: np.ndarray) -> None:
    """Do nothing, because the result is in `out` already."""


def _correlate(kernel: Kernel, block: np.ndarray, out: np.ndarray) -> None:
    before = kernel.halo[0]
    inside = [slice(b, b + n) for b, n in zip(before, out.shape, strict=True)]
    if kernel.lines is None:
        out[...] = correlate(block, kernel.weights)[tuple(inside)]
        return
    for axis, line in enumerate(kernel.lines):
        if line.tolist() == [1.0]:
            continue  # skipped as in SciPy: the pass would turn -0.0 into 0.0
        crop = [slice(None)] * 3
        crop[axis] = inside[axis]
        block = correlate1d(block, line, axis)[tuple(crop)]
    out[...] = block


def _read_npy(path: str) -> np.ndarray:
    with open_npy(path, "kernel") as file:
        file.finite = False  # the message below is for a kernel
        weights = np.empty(file.shape, np.float64)
        file.read_into((0, 0, 0), weights)
    finite = np.isfinite(weights)
    if not finite.all():
        index = np.unravel_index(int(np.argmin(finite)), weights.shape)
        where = f"weight {[int(i) for i in index]}"
        raise InputError(f"the value is {weights[index]}; every weight must be finite", path=path, where=where)
    return weights


def _numbers(text: str) -> list[float]:
    """Parse three numbers, or one number, which is repeated three times; [] for any other text."""
    if re.fullmatch(rf"{_NUMBER}(,{_NUMBER},{_NUMBER})?", text):
        numbers = [float(word) for word in text.split(",")]
        return numbers * 3 if len(numbers) == 1 else numbers
    return []


def _lines(lines: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    z, y, x = lines
    return z, y, x


def _gaussian(sigma: float) -> np.ndarray:
    if sigma == 0:
        return np.ones(1)
    radius = int(TRUNCATE * sigma + 0.5)
    weights = np.exp(-0.5 / (sigma * sigma) * np.arange(-radius, radius + 1) ** 2)
    return weights / weights.sum()


def _laplace() -> np.ndarray:
    weights = np.zeros((3, 3, 3))
    weights[1, 1, 1] = -6
    for axis in range(3):
        for end in (0, 2):
            weights[tuple(end if i == axis else 1 for i in range(3))] = 1
    return weights


def _derivative() -> np.ndarray:
    return np.array([-1.0, 0.0, 1.0])


def _smoothing() -> np.ndarray:
    return np.array([1.0, 2.0, 1.0])


def check_fits(kernel: Kernel, shape: Shape, path: str) -> None:
    """Raises InputError if the kernel is larger than the volume along an axis."""
    if any(n < K for K, n in zip(kernel.shape, shape, strict=True)):
        sizes = [" x ".join(map(str, sizes)) for sizes in (kernel.shape, shape)]
        both = f"the kernel {kernel.name} is {sizes[0]} and the volume {sizes[1]} {axes_of(path)}"
        raise InputError(
            f"{both}: it is larger than the volume",
            path=path,
            remedy="use a smaller kernel, or leave the short axis unfiltered, as in gaussian:0,1.5,1.5 and box:1,3,3. "
            "In Python, tilewright.ndimage filters such volumes, too",
        )
    if kernel.lines is None and math.prod(kernel.shape) > MAX_TAPS:
        taps = f"{math.prod(kernel.shape):,} taps; at most {MAX_TAPS:,} are allowed"
        raise InputError(f"the kernel has {taps}", path=kernel.name, remedy="use a smaller one, or gaussian: or box:")
