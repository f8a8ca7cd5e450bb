"""The messages between MPI ranks, and the errors with which ranks end."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import InternalError, TilewrightError
from tilewright.runtime.engines.staging import Parcel
from tilewright.runtime.jobs.directory import Record
from tilewright.runtime.jobs.merge import Report
from tilewright.runtime.jobs.unchanged import AsBegun


@dataclass
class Hello:
    """A rank's heartbeat, sent regularly while it waits or works. done, share: of its shard, see `task.Beat`.

    record: the record that runs next, if it runs alone.
    """

    done: int = 0
    record: int | None = None
    share: float | None = None


@dataclass
class Want:
    """A rank requests a shard: it has loaded its model and opened the input, or has finished its previous shard.

    record: of the previous shard. parcel: the previous shard itself, if the node does not see the output.
    """

    record: Record | None = None
    parcel: Parcel | None = None


@dataclass
class Asked:
    """A rank received a signal that asks it to stop. name: of the signal."""

    name: str


@dataclass
class Begin:
    """Rank 0 has shards to run. began: the identities of the input files on rank 0. manifest: the bytes of the file."""

    began: AsBegun
    manifest: bytes


@dataclass
class Finished:
    """Rank 0 has written the output; report: its report."""

    report: Report


@dataclass
class Failed:
    """A rank cannot go on, and waits for `Ended`. host: the name of its node. is_logged: it has logged the error."""

    error: TilewrightError
    host: str
    is_logged: bool


@dataclass
class Ended:
    """The job ends because of an error, which rank 0 reports. code: the exit code of all ranks."""

    code: int


@dataclass
class Bye:
    """The last message of a rank."""


class Ending(SystemExit):
    """Ends a rank that has received `Ended`. Its worker must not take it for an error of a record."""


class NoResponse(InternalError):
    """A rank sends no heartbeat, so the ranks cannot exit in order."""


def named(error: TilewrightError, rank: int, host: str) -> TilewrightError:
    """The error with the rank that found it in its message."""
    error.message += f" (rank {rank} on {host})"
    return error
