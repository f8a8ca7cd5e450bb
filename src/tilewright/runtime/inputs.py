"""The size of shards: as many records as take some seconds, for every kind of input."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.errors import UsageError
from tilewright.formats.inputs import open_text
from tilewright.formats.lines import end_of
from tilewright.formats.names import kind_of_records
from tilewright.runtime.jobs.cut import Cut, Lines, Records, RowGroups, Whole

SCAN_BYTES = 64 << 20  # of a binary input, whose ids are checked before the work: a third of a second from a slow disk
SAMPLE_BYTES = 1 << 20  # of text, from which the length of its lines is taken
PIECES = 20  # shards per worker, at most, if there are several: the last ones balance workers of different speed
ENCODER_FLOPS = {"cpu": 5e11, "cuda": 5e14}  # of an encoder's shard: two to five seconds on 2 cores, or on a GPU
ENCODER_TEXTS = 1 << 16  # of its shard on a GPU, at most
TYPICAL = 64  # tokens of a text, for the size of a shard
SHARES = 16  # least number of shards for one worker, if there are enough records: a kill costs about one of them


@dataclass(frozen=True)
class Sizing:
    """The size of shards. records: wanted per shard. least: lower bound if there are several workers, because smaller
    shards leave batches unfilled. alone: lower bound for a single worker (None: `records`). most_bytes: upper bound for
    a shard of text."""

    records: int
    least: int
    workers: int = 1
    most_bytes: int = 256 << 20
    alone: int | None = None

    def for_workers(self, workers: int) -> Sizing:
        """The sizing for this many workers, which share the input evenly."""
        return replace(self, least=min(self.least, self.records), workers=workers)

    def a_shard(self, total: int) -> int:
        """Records per shard for an input of `total` records: equal pieces of each worker's part."""
        if self.workers == 1:
            return min(self.records, max(-(-total // SHARES), self.alone or self.records))
        part = max(-(-total // self.workers), 1)
        pieces = max(min(part // self.least, PIECES), 1)
        return min(self.records, -(-part // pieces))


def encoder_sizing(flops: Callable[[int], int], device: str, batch: int) -> Sizing:
    """The size of an encoder's shards. flops: operations of a text of so many tokens. batch: texts that the model gets
    at once."""
    most = batch if device == "cpu" else ENCODER_TEXTS
    records = max(16, min(most, int(ENCODER_FLOPS[device] / flops(TYPICAL))))
    return Sizing(records, max(16, records // 4))


def cut_rows(count: int, row_bytes: int, shard_size: int | None, sizing: Sizing) -> Cut:
    """The cut of a binary input. shard_size: rows."""
    return Records(row_bytes, count, shard_size or sizing.a_shard(count))


def cut_lines(path: str | os.PathLike[str], count: int | None, shard_size: int | None, sizing: Sizing) -> Cut:
    """The cut of the first `count` records of a text (None: all). shard_size: bytes. Raises InputError.

    Parquet is cut into its row groups, and a shard_size raises UsageError.
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
