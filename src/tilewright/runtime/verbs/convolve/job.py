"""The options of `tilewright convolve`, and the checks that need no open volume."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.errors import InputError, TilewrightError, UsageError
from tilewright.formats.files import same_file
from tilewright.formats.names import check_suffix
from tilewright.formats.validate_volumes import TOLERANCE
from tilewright.formats.volumes import MemoryShort
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.location import job_path
from tilewright.runtime.jobs.manifest import Damaged, Value
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.reports import Report
from tilewright.runtime.verbs.convolve.kernels import default_mode
from tilewright.runtime.verbs.convolve.tiles import MODES


@dataclass
class ConvolveJob:
    """The options of a convolve job. The files' suffixes select their formats; see formats/volume_formats.py.

    kernel: a name or a path, see kernels.py. It is not flipped: out = scipy.ndimage.correlate(in, kernel). mode, cval:
    the values outside the volume, as in scipy.ndimage. mode None: "constant" if a cval is given; else "reflect" for a
    named kernel, as in SciPy, and "constant" with zeros for a file. memory: bytes that all processes together may use;
    None: most of the free memory. answers: a volume to compare the output with. settings: their shard_size counts
    planes. A GPU computes in float32 only.
    """

    input: str
    kernel: str
    output: str
    mode: str | None = None
    cval: float = 0.0
    memory: int | None = None
    answers: str | None = None
    tolerance: float = TOLERANCE
    settings: Settings = field(default_factory=Settings)

    @property
    def dtype(self) -> str | None:
        """The dtype of the sums and the output, "float32" or "float64"; None: chosen by the input's dtype."""
        return self.settings.dtype

    @property
    def device(self) -> str:
        """ "cpu", "cuda" or "auto"."""
        return self.settings.device


@dataclass
class ConvolveReport(Report):
    """The report of a convolve job. records, computed: voxels. tiles: the number of tiles. tile: their shape."""

    tiles: int = 0
    tile: tuple[int, ...] = ()


STEP = 8 << 20  # bytes: the granularity of the search; a program's memory varies by less from run to run
FIRST, MOST = 256 << 20, 1 << 50  # bytes: the first and the last size that the search tries


def with_mode(job: ConvolveJob) -> ConvolveJob:
    """The job with its `mode` filled in.

    Raises UsageError if an earlier version of tilewright started this job with another default mode.
    """
    if job.mode is not None:
        return job
    mode = "constant" if job.cval else default_mode(job.kernel)
    if mode != "constant" and not job.settings.restart and _mode_begun(job.output) == "constant":
        raise UsageError(
            f"the job was begun with --mode constant, which was the default then; that of {job.kernel} is {mode} now",
            path=job_path(job.output),
            remedy="give --mode constant to resume it, another output, or --restart to discard the finished shards",
        )
    return replace(job, mode=mode)


def _mode_begun(output: str) -> Value:
    """The mode of the job of this output; None if there is no job or it cannot be read."""
    if not os.path.isdir(job_path(output)):
        return None
    try:
        with JobDirectory(output, look=True) as directory:
            return directory.manifest.fingerprint.get("mode")
    except (Damaged, TilewrightError):
        return None  # the run raises the error later


def check_paths(job: ConvolveJob) -> None:
    """Check the options that need no file to be read. Raises UsageError and InputError."""
    check_suffix(job.input, "input")
    check_suffix(job.output, "output")
    if job.mode not in MODES:
        raise UsageError(f"mode is {job.mode!r}; it must be one of {', '.join(MODES)}")
    if job.cval and not str(job.mode).endswith("constant"):
        raise UsageError(f"cval is {job.cval:g} and mode {job.mode!r}, which has no constant outside the volume",
                         remedy="leave --cval out, or give --mode constant")  # fmt: skip
    if not math.isfinite(job.cval):
        raise UsageError(f"cval is {job.cval}; a finite number is wanted")
    if job.dtype != "float64" and abs(job.cval) > float(np.finfo(np.float32).max):
        raise UsageError(f"cval is {job.cval}; it is too large for float32", remedy="use --dtype float64")
    for what, path in (("input", job.input), ("kernel", job.kernel), ("answers", job.answers)):
        if path and _overlap(path, job.output):
            raise UsageError(f"the output would overwrite the {what}", path=job.output, remedy="choose another output")
    if job.answers:
        check_suffix(job.answers, "answers")
        if not os.path.exists(job.answers):
            raise InputError("no such answers", path=job.answers, remedy="check the path")


def _overlap(path: str, output: str) -> bool:
    """True if both paths are the same file, or one is inside the other."""
    if same_file(path, output):
        return True
    a, b = os.path.realpath(path), os.path.realpath(output)
    return a == b or a.startswith(b + os.sep) or b.startswith(a + os.sep)


def least_memory(memory: int, checked: Callable[[int], object]) -> int | None:
    """The smallest sufficient memory in bytes, in steps of STEP, given that `memory` is too small.

    checked(memory): raises MemoryShort if `memory` is too small; it reads only the volume's header. Returns None if
    even MOST is too small, or if the check fails for another reason.
    """

    def is_enough(count: int) -> bool:
        try:
            checked(count * STEP)
        except MemoryShort:
            return False
        return True

    low, high = memory // STEP, max(2 * memory // STEP, FIRST // STEP)  # low is too small
    try:
        while not is_enough(high):
            low, high = high, 2 * high
            if high * STEP > MOST:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_enough(middle) else (middle, high)
    except TilewrightError:
        return None
    return high * STEP
