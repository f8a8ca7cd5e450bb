"""What differs between MPI launchers: how they announce the number of processes, and when they forward messages."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import termios
import time
from contextlib import suppress
from typing import TextIO

from tilewright.errors import UsageError

SIZES = (  # variables with the number of processes; Slurm sets its variable under srun, but not in a batch script
    "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS",
)  # fmt: skip
READ_SECONDS = 2.0  # until the launcher must have read what a rank has written


def wait_until_read(stream: TextIO | None) -> None:
    """If `stream` is a pipe, wait until the launcher has read everything in it.

    After MPI_Abort, MPICH's mpiexec does not forward what it has not read yet.
    """
    until = time.monotonic() + READ_SECONDS
    with suppress(OSError, ValueError):  # it has no descriptor, or this system cannot tell
        fd = stream.fileno() if stream else -1
        while stat.S_ISFIFO(os.fstat(fd).st_mode) and time.monotonic() < until:
            if not struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]:
                return
            time.sleep(0.001)


def started() -> tuple[list[str], int]:
    """The variables that report several processes, and the number in the first of them; ([], 1) if there are none."""
    said = {name: os.environ.get(name, "") for name in SIZES}
    counts = {name: int(text) for name, text in said.items() if text.isdecimal() and int(text) > 1}
    return list(counts), next(iter(counts.values()), 1)


def unlink_shared_memory() -> None:
    """Remove the names of MPICH's shared memory that this process has mapped. Its memory stays mapped.

    A killed rank would leave its shared memory on the node. When Slurm restarts the job, MPICH uses the same names
    again, and MPI_Init would fail or hang on the old memory.
    """
    names = set()
    with suppress(OSError), open("/proc/self/maps", "rb") as file:  # some systems have no such file
        names = {line.split(None, 5)[-1].strip() for line in file if b" /dev/shm/mpich_shm_" in line}
    for name in names:
        with suppress(OSError):  # already unlinked: the path in maps then ends with " (deleted)"
            os.unlink(name)


def check_size(size: int) -> None:
    """Raises UsageError if the launcher reports several processes but MPI sees one."""
    names, count = started()
    said = ", ".join(names)
    if size == 1 and count > 1:
        raise UsageError(
            f"the launcher started {count} processes ({said}) and MPI sees one: each would do the whole job",
            remedy="use the mpiexec of the MPI that mpi4py was built with",
        )


def check_alone() -> None:
    """Raises UsageError if a launcher started several processes of a job whose engine expects only one process."""
    names, count = started()
    if count > 1:
        raise UsageError(
            f"this was started {count} times by an MPI launcher ({', '.join(names)}), and each would do the whole job",
            remedy=f"add --engine mpi, or --part K/{count}; if each has its own output, unset {' '.join(names)}",
        )
