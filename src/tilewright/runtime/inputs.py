"""How large shards are: records that take some seconds, whatever an input's records are like."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.errors import UsageError
from tilewright.formats.files import InputFile
from tilewright.formats.lines import end_of
from tilewright.runtime.jobs.cut import Cut, Lines, Records, RowGroups, Whole

SCAN_BYTES = 64 << 20  # of a binary input, whose ids are checked before the work: a third of a second from a slow disk
SAMPLE_BYTES = 1 << 20  # of text, from which the length of its lines is taken
PIECES = 20  # shards a worker, at most, where there are several: the last ones then even out what their speeds differ
SHARES = 16  # shards at least, where one worker has records enough for them: a kill costs about that part of a job


@dataclass(frozen=True)
class Sizing:
    """records: that a shard should have; least: that it must where there are as many, or its begin and end, when the
    model's batches are not full, cost too much; alone: the same where one worker has all, for a small job, of which
    `records` would be most (None: they take seconds); most_bytes: of text."""

    records: int
    least: int
    workers: int = 1
    most_bytes: int = 256 << 20
    alone: int | None = None

    def for_workers(self, workers: int) -> Sizing:
        """The same for so many workers, among whom the input is to be divided evenly."""
        return replace(self, least=min(self.least, self.records), workers=workers)

    def a_shard(self, total: int) -> int:
        """Records a shard of an input of so many: each worker's part in equal pieces."""
        if self.workers == 1:
            return min(self.records, max(-(-total // SHARES), self.alone or self.records))
        part = max(-(-total // self.workers), 1)
        pieces = max(min(part // self.least, PIECES), 1)
        return min(self.records, -(-part // pieces))


def cut_rows(count: int, row_bytes: int, shard_size: int | None, sizing: Sizing) -> Cut:
    """Of a binary input. shard_size: rows."""
    return Records(row_bytes, count, shard_size or sizing.a_shard(count))


def cut_lines(path: str, count: int | None, shard_size: int | None, sizing: Sizing) -> Cut:
    """Of a text, whose first `count` records are wanted (None: all). shard_size: bytes. Raises InputError.

    Of Parquet, its row groups; UsageError for a shard_size.
    """
    with InputFile(path, "input") as file:
        if path.endswith(".parquet"):
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
