"""The size of shards: as many records as take some seconds, for every kind of input."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from tilewright.errors import UsageError
from tilewright.formats.inputs import open_text
from tilewright.formats.lines import end_of
from tilewright.formats.names import kind_of_records
from tilewright.runtime.jobs.cut import Cut, Lines, Records, RowGroups, Whole

SCAN_BYTES = 64 << 20  # of a binary input whose ids are checked before the work: 0.3 s from a slow disk
SAMPLE_BYTES = 1 << 20  # of text that are read to estimate the length of a line
PIECES = 20  # the most shards per worker, if there are several: the last shards balance workers of different speed
SHARES = 16  # the fewest shards for one worker, if there are enough records: a kill loses about one of them


@dataclass(frozen=True)
class Sizing:
    """The size of shards.

    records: desired per shard. least: the fewest records per shard with several workers, because smaller shards do not
    fill batches. alone: the fewest for a single worker (None: `records`). most_bytes: the most bytes of a text shard.
    """

    records: int
    least: int
    workers: int = 1
    most_bytes: int = 256 << 20
    alone: int | None = None

    def for_workers(self, workers: int) -> Sizing:
        """The sizing for this number of workers, which share the input evenly."""
        return replace(self, least=min(self.least, self.records), workers=workers)

    def a_shard(self, total: int) -> int:
        """Records per shard for an input of `total` records: equal pieces of each worker's part."""
        if self.workers == 1:
            return min(self.records, max(-(-total // SHARES), self.alone or self.records))
        part = max(-(-total // self.workers), 1)
        pieces = max(min(part // self.least, PIECES), 1)
        return min(self.records, -(-part // pieces))


def cut_rows(count: int, row_bytes: int, shard_size: int | None, sizing: Sizing) -> Cut:
    """Divide a binary input. shard_size: in rows; None: chosen by `sizing`."""
    return Records(row_bytes, count, shard_size or sizing.a_shard(count))


def cut_lines(path: str | os.PathLike[str], count: int | None, shard_size: int | None, sizing: Sizing) -> Cut:
    """Divide the first `count` records of a text (None: all). shard_size: in bytes; None: chosen by `sizing`.

    Parquet is divided into its row groups, so a shard_size raises UsageError there. Raises InputError.
    """
    with open_text(path, "input") as file:
        if kind_of_records(path) == ".parquet":
            if shard_size is not None:
                raise UsageError("the shards of a Parquet file are its row groups", remedy="leave out --shard-size")
            from tilewright.formats.parquet import row_groups

            return RowGroups(row_groups(file, count))
        size = file.size if count is None else end_of(file, count)
        if shard_size is None:
            sample = bytearray(min(SAMPLE_BYTES, size))
            file.read_into(sample, 0)
            line = max(len(sample) / (sample.count(b"\n") or 1), 1.0)
            shard_size = min(int(line * sizing.a_shard(int(size / line))), sizing.most_bytes)
    return Lines(size, max(shard_size, 1)) if size else Whole()
