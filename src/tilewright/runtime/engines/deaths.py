"""Shards that have ended ranks, and so the whole job, in earlier runs: the next one is careful with them.

Each death is a line of the job's logs/deaths.jsonl, written by the witness of its node, by the rank that could not go
on, or by rank 0 for one that gave no sign of life.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from tilewright.runtime.engines.schedule import TRIES, Assignment
from tilewright.runtime.engines.witness import DEATHS
from tilewright.runtime.jobs.directory import JobDirectory

MOST_BYTES = 1 << 20  # of the file that are read


class Death(msgspec.Struct, frozen=True):
    """record: the one that ran alone, if one did."""

    shard: int
    record: int | None
    why: str


def assignments(directory: JobDirectory, shards: list[int]) -> list[Assignment]:
    """Shards as they are to be run: one that has ended TRIES ranks a record at a time, one of its records that has
    ended TRIES ranks alone not at all, but for its error.

    A rank may be killed for other reasons, even twice at one shard: that costs time, and no record.
    """
    found = [death for line in (directory.logs.read(DEATHS, MOST_BYTES) or b"").splitlines() if (death := _death(line))]
    deaths = Counter(death.shard for death in found)
    alone = Counter((death.shard, death.record) for death in found if death.record is not None)
    why = {(death.shard, death.record): death.why for death in found}
    given = []
    for shard in shards:
        blamed = [key for key, times in alone.items() if key[0] == shard and times >= TRIES]
        skip = tuple((key[1] or 0, f"it ended its worker: {why[key]}") for key in blamed)
        given.append(Assignment(shard, deaths[shard] >= TRIES, skip, deaths[shard]))
    return given


def _death(line: bytes) -> Death | None:
    """None where the line is torn."""
    try:
        return msgspec.json.decode(line, type=Death)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
