"""What every job reports: records, errors, seconds a phase, memory."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from tilewright.errors import InternalError
from tilewright.formats.records import RecordError
from tilewright.formats.validate import Validation

SHOWN_ERRORS = 5

Say = Callable[[str], None]


@dataclass
class Report:
    """What a job did. seconds: by phase and in "total"; "run" is the model's. peak_memory: bytes, with mapped files."""

    records: int = 0
    errors: int = 0
    first_errors: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    records_per_second: float = 0.0
    peak_memory: int = 0
    validation: Validation | None = None

    @property
    def exit_code(self) -> int:
        """0, or 1 where records failed or the validation did."""
        return int(self.errors > 0 or (self.validation is not None and not self.validation.passed))

    def finish(self, start: float) -> None:
        """The figures of the whole run, which began at `start` of time.perf_counter()."""
        self.seconds["total"] = time.perf_counter() - start
        self.records_per_second = self.records / max(self.seconds.get("run", 0.0), 1e-9)
        self.peak_memory = peak_memory()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def count_errors(job: Any, report: Report, errors: list[RecordError]) -> None:
    """Adds the errors; raises InternalError if there are now more than the job's `max_errors`."""
    report.errors += len(errors)
    report.first_errors += map(str, errors[: SHOWN_ERRORS - len(report.first_errors)])
    if job.max_errors is not None and report.errors > job.max_errors:
        raise InternalError(
            f"{report.errors:,} of the first {report.records:,} records are bad and {job.max_errors:,} are allowed; "
            f"the first is {report.first_errors[0]}",
            path=job.input,
            hint="correct them or allow more",
        )


@contextmanager
def phase(report: Report, name: str, say: Say = lambda text: None, doing: str = "") -> Iterator[None]:
    """Adds the block's time to `report.seconds[name]`, and says "doing...Done!" at its end."""
    start = time.perf_counter()
    yield
    spent = time.perf_counter() - start
    report.seconds[name] = report.seconds.get(name, 0.0) + spent
    if doing:
        say(f"{doing}...Done! ({spent:.3f} sec)")


def peak_memory() -> int:
    """Bytes: the largest resident size of this process so far, with the pages of mapped files that were touched."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:  # getrusage would count what was before exec, too
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
