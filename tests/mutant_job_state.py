"""Files that say where a job's state is and what its workers run, as kinds of `mutant_kinds`: OUT.job and owner.json of
--job-dir, job.json of `tilewright work`, and the other files of a job's directory.

A command goes on with the mutant of one of them: it refuses, or its output has the bytes of an undisturbed run.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mutant_jobs import JOBS, SHARD, begun_job, inputs, remove, sealed
from mutating import Kind
from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.runtime.jobs.directory import INDEX, LEASE, REPORT, REQUEST
from tilewright.runtime.jobs.finished import digest_of
from tilewright.runtime.jobs.location import OWNER, Location
from tilewright.runtime.jobs.made import MADE, Made
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.record import part_name
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.status import status
from tilewright.runtime.stores.work import work

REFUSED = (InputError, UsageError, ResourceError)
STATE, BESIDE = "state", "OUT.job"  # the directory of --job-dir, and the file that names it
OUTPUTS = ("classify.jsonl", "convolve.npy", "draw")


def _digest(output: str) -> bytes:
    return repr(digest_of(output, lambda: None)).encode()


@dataclass
class _Elsewhere:
    """A job all of whose shards are in STATE, but whose output is missing. kept: a copy of STATE. pointer: OUT.job."""

    output: str
    kept: str
    pointer: bytes

    def again(self, name: str, data: bytes) -> bytes:
        """The output of the job's command, without --job-dir and with it, where `data` is the file `name`.

        Raises InputError if both refuse. They must not differ.
        """
        found = set()
        for more in ({}, {"job_dir": STATE}):
            self._put_back()
            Path(f"{self.output}.job" if name == BESIDE else f"{STATE}/{name}").write_bytes(data)
            for look in (status, verify):
                with suppress(*REFUSED):
                    look(self.output)
            try:
                JOBS[self.output](self.output, **more)
            except REFUSED as error:
                told = error
                continue
            found.add(_digest(self.output))
        if not found:
            raise InputError(str(told)) from told
        return b" ".join(sorted(found))

    def _put_back(self) -> None:
        for path in (self.output, f"{self.output}.job", STATE):
            remove(path)
        shutil.copytree(self.kept, STATE)
        Path(f"{self.output}.job").write_bytes(self.pointer)
        if self.output == "draw":
            os.mkdir(self.output)


def _elsewhere(output: str, name: str, *, forged: bool) -> Callable[[Path], Kind]:
    """OUT.job or owner.json. forged: its seal is computed again, so that its content is the mutant's own."""

    def kind(folder: Path) -> Kind:
        inputs(output)
        JOBS[output](output, job_dir=STATE)
        right, pointer = _digest(output), Path(f"{output}.job").read_bytes()
        os.rename(f"{STATE}/{REPORT}", "report.json")
        if output != "classify.jsonl":
            os.rename(output, f"{STATE}/output")  # as it is before the merge
        os.rename(STATE, "kept")
        job = _Elsewhere(output, "kept", pointer)
        seed = pointer if name == BESIDE else Path("kept", name).read_bytes()
        read = lambda data: job.again(name, sealed(data, Location) if forged else data)  # noqa: E731
        return Kind([seed], read, text=True, known={right}, refuses=False)

    return kind


def _request(output: str) -> Callable[[Path], Kind]:
    """job.json, with which a worker joins while a shard is missing. The job's own command then ends the job."""

    def kind(folder: Path) -> Kind:
        job = begun_job(folder, output)
        right = repr(job.right).encode()

        def read(data: bytes) -> bytes:
            job.put_back()
            os.unlink(f"{output}.job/shards/{part_name(SHARD)}")
            Path(f"{output}.job", REQUEST).write_bytes(data)
            refused = None
            try:
                work(output, Settings())
            except REFUSED as error:
                refused = error
            JOBS[output](output)
            found = _digest(output)
            if refused and found == right:
                raise InputError(str(refused)) from refused
            return found

        seed = Path(job.kept, REQUEST).read_bytes()
        sized = seed.replace(b'"batch_size":null', b'"batch_size":3')  # which changes no bits, so no fingerprint has it
        return Kind([seed, sized], read, text=True, known={right})

    return kind


def _other(output: str, name: str, type_: type | None = None) -> Callable[[Path], Kind]:
    """Another file of the job's directory. type_: of its content, if its seal is computed again."""

    def kind(folder: Path) -> Kind:
        job = begun_job(folder, output)
        seed = Path(job.kept, name).read_bytes()
        read = lambda data: job.again(name, sealed(data, type_) if type_ else data)  # noqa: E731
        return Kind([seed], read, text=True, known={repr(job.right).encode()}, refuses=False)

    return kind


STATE_KINDS: dict[str, Callable[[Path], Kind]] = {
    **{f"job place {output}": _elsewhere(output, BESIDE, forged=False) for output in OUTPUTS},
    **{f"job place forged {output}": _elsewhere(output, BESIDE, forged=True) for output in OUTPUTS},
    **{f"job owner {output}": _elsewhere(output, OWNER, forged=False) for output in OUTPUTS},
    **{f"job owner forged {output}": _elsewhere(output, OWNER, forged=True) for output in OUTPUTS},
    **{f"job request {output}": _request(output) for output in OUTPUTS},
    "job made classify.jsonl": _other("classify.jsonl", MADE),
    "job made forged classify.jsonl": _other("classify.jsonl", MADE, Made),
    "job lines classify.jsonl": _other("classify.jsonl", INDEX),
    "job lease classify.jsonl": _other("classify.jsonl", LEASE),
}
