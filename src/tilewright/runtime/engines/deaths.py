"""Shards that killed a rank in an earlier run, and so stopped the whole job. The next run isolates the bad records.

Each death is a line of the job's logs/deaths.jsonl. The line is written by the node's witness, by the rank that failed,
or by rank 0 for a rank that hangs.
"""

from __future__ import annotations

import msgspec

from tilewright.runtime.engines.schedule import TRIES, Assignment, End, Ends
from tilewright.runtime.engines.witness import DEATHS
from tilewright.runtime.jobs.directory import JobDirectory

MOST_BYTES = 1 << 20  # of deaths.jsonl that are read


class Death(msgspec.Struct, frozen=True):
    """The death of a rank. record: the record that ran alone, if any. killed: as `End.killed`.

    forget: no rank died; the line only says that earlier deaths at this shard no longer count.
    """

    shard: int
    record: int | None
    why: str
    killed: bool = False
    forget: bool = False


def assignments(directory: JobDirectory, shards: list[int]) -> list[Assignment]:
    """How to run these shards. A shard that has killed TRIES ranks runs one record at a time. A blamed record
    (`Ends.blamed`) does not run; it gets an error.

    A rank may also be killed for reasons unrelated to the shard. Then running single records costs time, but no record
    is lost.
    """
    found: dict[int, list[Death]] = {}
    for line in (directory.logs.read(DEATHS, MOST_BYTES) or b"").splitlines():
        if death := _death(line):
            found[death.shard] = [] if death.forget else [*found.get(death.shard, []), death]
    return [_assignment(shard, found.get(shard, [])) for shard in shards]


def _assignment(shard: int, deaths: list[Death]) -> Assignment:
    ends: dict[int, Ends] = {}
    why: dict[int, str] = {}
    for death in deaths:
        if death.record is not None:
            ends.setdefault(death.record, Ends()).add(End(death.why, death.killed))
            why[death.record] = death.why
    blamed = {record: end for record, end in ends.items() if end.blamed}
    skip = tuple((record, end.reason(why[record])) for record, end in blamed.items())
    return Assignment(
        shard, len(deaths) >= TRIES, skip, len(deaths), doubted=sum(end.doubted for end in blamed.values())
    )


def _death(line: bytes) -> Death | None:
    """The death that a line describes; None if the line is torn."""
    try:
        return msgspec.json.decode(line, type=Death)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
