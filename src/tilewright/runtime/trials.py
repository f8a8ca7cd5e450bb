"""The speed of a similar job: a job in the same directory with the same model or kernel on the same device."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from tilewright.errors import ResourceError
from tilewright.formats.fetched import STAGED
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.manifest import CHANGED, CTIME, SWITCHES, Damaged, Value
from tilewright.runtime.jobs.record import Record

SHARDS = 64  # the most shards of a job from which the rate is computed
LEAST_SECONDS = 1.0  # of a job that gives a rate: in less, the start of a shard may take most of the time
# Fields of the fingerprint on which the time per record depends; `input.` for volumes, whose records are planes
SAME = ("verb", "dtype", "device", "image", "kernel", "mode", "sampling.", "model.", "rung.", SWITCHES)
SEED = "sampling.seed"  # another one gives other tokens in the same time


@dataclass(frozen=True)
class Trial:
    """A similar job. path: its directory. seconds: the sum that its workers spent on `records`, which are good."""

    path: str
    records: int
    seconds: float

    @property
    def is_short(self) -> bool:
        """True if the job took too little time to give a rate."""
        return self.seconds < LEAST_SECONDS


def trial_for(fingerprint: Mapping[str, Value], output: str) -> Trial | None:
    """The similar job in the directory of `output` with the longest run time; None if there is none.

    An earlier run of this job counts, too. A job without a good record does not. If the output is a URL, jobs in the
    current directory count.
    """
    trials = [trial for path in _jobs_beside(output) if (trial := _measured(path, fingerprint))]
    return max(trials, key=lambda trial: trial.seconds, default=None)


def _jobs_beside(output: str) -> Iterator[str]:
    """The outputs of all jobs in the directory of `output`, or in the current directory if `output` is a URL."""
    folder = os.getcwd() if os.path.abspath(output) in STAGED else os.path.dirname(os.path.realpath(output))
    with suppress(OSError), os.scandir(folder) as entries:
        yield from (entry.path.removesuffix(".job") for entry in entries if entry.name.endswith(".job"))


def _measured(output: str, fingerprint: Mapping[str, Value]) -> Trial | None:
    """The trial in the job directory of `output`; None if it is not similar or cannot be read.

    Errors of unrelated jobs must not stop a plan.
    """
    try:
        with JobDirectory(output, look=True) as directory:
            if _speed_fields(directory.manifest.fingerprint) != _speed_fields(fingerprint):
                return None
            records: list[Record] = [found for number in islice(directory.committed(), SHARDS)
                                     if (found := directory.record(number))]  # fmt: skip
    except (Damaged, ResourceError):
        return None
    count = sum(record.records - record.errors for record in records)
    seconds = sum(record.seconds for record in records)
    return Trial(directory.path, count, seconds) if count and seconds > 0 else None


def _speed_fields(fingerprint: Mapping[str, Value]) -> dict[str, Value]:
    names = (*SAME, "input.") if fingerprint.get("verb") == "convolve" else SAME
    return {
        name: value
        for name, value in fingerprint.items()
        if (name in names or name.startswith(tuple(one for one in names if one.endswith("."))))
        and name != SEED
        and not name.endswith((CHANGED, CTIME))
    }
