"""What of `tilewright convolve` can be checked before a volume is opened, and how much memory would have done."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tilewright.errors import InputError, TilewrightError, UsageError
from tilewright.formats.files import same_file
from tilewright.formats.names import check_suffix
from tilewright.formats.volumes import MemoryShort
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.manifest import Damaged, Value
from tilewright.runtime.verbs.convolve.kernels import default_mode
from tilewright.runtime.verbs.convolve.tiles import MODES

if TYPE_CHECKING:
    from tilewright.runtime.verbs.convolve.task import ConvolveJob

STEP = 8 << 20  # of what is said: the size of a program differs by less between two runs
FIRST, MOST = 256 << 20, 1 << 50  # bytes: where the search begins and ends


def with_mode(job: ConvolveJob) -> ConvolveJob:
    """The same with its mode. Raises UsageError where an earlier version began this job with another default."""
    if job.mode is not None:
        return job
    mode = "constant" if job.cval else default_mode(job.kernel)
    if mode != "constant" and not job.settings.restart and _mode_begun(job.output) == "constant":
        raise UsageError(
            f"the job was begun with --mode constant, which was the default then; that of {job.kernel} is {mode} now",
            path=f"{job.output.rstrip('/')}.job",
            hint="give --mode constant to go on with it, another output, or --restart to throw away what was done",
        )
    return replace(job, mode=mode)


def _mode_begun(output: str) -> Value:
    """The mode of the job that this output has; None where there is none, or none that can be read."""
    if not os.path.isdir(f"{os.path.realpath(output)}.job"):
        return None
    try:
        with JobDirectory(output, look=True) as directory:
            return directory.manifest.fingerprint.get("mode")
    except (Damaged, TilewrightError):
        return None  # the run says what is wrong with it


def check_paths(job: ConvolveJob) -> None:
    """Everything that the words of the command alone can tell."""
    check_suffix(job.input, "input")
    check_suffix(job.output, "output")
    if job.mode not in MODES:
        raise UsageError(f"mode is {job.mode!r}", hint=f"there are {', '.join(MODES)}")
    if job.cval and not str(job.mode).endswith("constant"):
        raise UsageError(f"cval is {job.cval:g} and mode {job.mode!r}, which has no constant outside the volume",
                         hint="leave --cval out, or give --mode constant")  # fmt: skip
    if not math.isfinite(job.cval):
        raise UsageError(f"cval is {job.cval}; a finite number is wanted")
    if job.dtype != "float64" and abs(job.cval) > float(np.finfo(np.float32).max):
        raise UsageError(f"cval is {job.cval}; it is too large for float32", hint="use --dtype float64")
    for what, path in (("input", job.input), ("kernel", job.kernel), ("answers", job.answers)):
        if path and _overlap(path, job.output):
            raise UsageError(f"the output would overwrite the {what}", path=job.output, hint="choose another output")
    if job.answers:
        check_suffix(job.answers, "answers")
        if not os.path.exists(job.answers):
            raise InputError("no such answers", path=job.answers, hint="check the path")


def _overlap(path: str, output: str) -> bool:
    """They are one file, or one lies in the other, which is a directory."""
    if same_file(path, output):
        return True
    a, b = os.path.realpath(path), os.path.realpath(output)
    return a == b or a.startswith(b + os.sep) or b.startswith(a + os.sep)


def least_memory(memory: int, checked: Callable[[int], object]) -> int | None:
    """The least number of bytes, in steps of STEP, that would do where `memory` was too little.

    checked(memory): raises MemoryShort where that is too little, too; of the volume it reads the header. None where it
    finds another obstacle, or where MOST would not do.
    """

    def is_enough(count: int) -> bool:
        try:
            checked(count * STEP)
        except MemoryShort:
            return False
        return True

    low, high = memory // STEP, max(2 * memory // STEP, FIRST // STEP)  # low is too little
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
