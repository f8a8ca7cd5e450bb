"""The base class of streams: pass the records of a shard to a decoder, and write the results in input order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from tilewright.formats.records import Record, RecordError
from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.cut import Records, RowGroups, Shard
from tilewright.runtime.jobs.directory import Attempt
from tilewright.runtime.jobs.task import Beat
from tilewright.runtime.reports import Report, phase

READ = 256  # records that are read at a time
WRITTEN = 64  # results that are written at a time
WRITTEN_VALUES = 1 << 18  # results are also written if they have this many tokens and log-probabilities: about 30 MB

R = TypeVar("R", bound=Record)
Located = Callable[[RecordError], RecordError]


class Writer(Protocol):
    """Writes results."""

    def write(self, results: Any, /) -> None: ...


class Stream(Generic[R]):
    """A shard's records that wait for the model, and the results that are not yet written."""

    nothing: Any = None  # the result of a record with an error

    def __init__(
        self, located: Located, report: Report, shard: Shard, out: Attempt, beat: Beat, writer: Writer
    ) -> None:
        """located: that of the reader."""
        self.located, self.report, self.shard = located, report, shard
        self.out, self.beat, self.writer = out, beat, writer
        self.pending: deque[R] = deque()  # records that are read and not yet written
        self.results: list[tuple[R, Any]] = []
        self.values = 0  # tokens and log-probabilities in the results
        self.expected = 0.0  # estimated number of records in the shard
        self.records = self.tokens = self.cut = 0

    def expect(self, count: int, end: int) -> None:
        """Update the estimated number of records in the shard, after `count` more records were read.

        end: bytes of the input up to the end of these records.
        """
        cut, share = self.shard.cut, self.shard.share(end)
        if share:
            self.expected = (self.records + count) / share
        elif isinstance(cut, Records | RowGroups):
            self.expected = cut.span(self.shard.number)[1]

    def skip_bad(self) -> None:
        """Move bad records at the front of `pending` to the results. Write the results if there are many."""
        while self.pending and self.pending[0].error is not None:
            self.fail(self.pending.popleft())
        if len(self.results) >= WRITTEN or self.values >= WRITTEN_VALUES:
            self.write()

    def fail(self, record: R) -> None:
        """Add a record's error to the results."""
        assert record.error is not None
        error = self.located(record.error)
        self.out.error(error)
        self.results.append((replace(record, error=error), self.nothing))

    def write(self) -> None:
        """Write all saved results."""
        with trace.span(trace.WRITE), phase(self.report, "write"):
            self.writer.write(self.results)
        self.results, self.values = [], 0
