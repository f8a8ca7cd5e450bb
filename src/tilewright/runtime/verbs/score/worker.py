"""The worker of `tilewright score`: passes the texts of a shard to the model, and writes the results in input order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tilewright.formats.models import eos_token_ids
from tilewright.formats.records import Record, RecordError
from tilewright.formats.scored import ScoredBatch, Scores, ScoreWriter
from tilewright.generation.language_model import LanguageModel
from tilewright.generation.scored_texts import NOT_FINITE, Pieces
from tilewright.generation.scoring import Wanted
from tilewright.runtime.fingerprint import in_force
from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.cut import Shard
from tilewright.runtime.jobs.directory import Attempt
from tilewright.runtime.jobs.task import Beat
from tilewright.runtime.kernel_cache import compiling_told
from tilewright.runtime.load import build, read_weights, tokenizer_of
from tilewright.runtime.reports import Report, Say, phase
from tilewright.runtime.verbs.streams import READ, Stream

if TYPE_CHECKING:
    from tilewright.runtime.verbs.score.task import ScoreTask


class ScoreWorker:
    """A `Worker`: loads the model, then scores the texts of shards with it."""

    def __init__(self, task: ScoreTask) -> None:
        self.task, self.job, self.report = task, task.job, Report()
        with ExitStack() as stack:
            stack.enter_context(in_force(task.job.settings))
            task.tokenizer = task.tokenizer or tokenizer_of(self.job.model)
            self.reader = stack.enter_context(closing(task.reader()))
            with compiling_told(task.say):
                self.model = _load(task, self.report, task.say)
            self.scorer = self.model.scorer(self.job.batch_memory)
            self.open = stack.pop_all()

    def run(self, shard: Shard, out: Attempt, beat: Beat) -> int:
        self.reader.only(shard.lines(self.reader.file))
        stream = _Stream(self, shard, out, beat)
        stream.run_alone(dict(shard.skip)) if shard.alone else stream.run()
        out.notes += b"".join(hashes.tobytes() for hashes in self.reader.hashes)
        out.figures = self.report.take_seconds() | {"tokens": stream.tokens, "read": stream.read, "cut": stream.cut}
        return stream.records

    def close(self) -> None:
        """Free the model. Called after the last shard."""
        self.open.close()


class _Stream(Stream[Record]):
    """Feeds the texts of a shard to the model."""

    def __init__(self, worker: ScoreWorker, shard: Shard, out: Attempt, beat: Beat) -> None:
        super().__init__(worker.reader.located, worker.report, shard, out, beat, ScoreWriter(out))
        self.scorer, self.reader = worker.scorer, worker.reader
        self.pieces: deque[Pieces] = deque()  # of the good texts that are pending
        self.read = 0

    def run(self) -> None:
        """Score all texts of the shard, many at a time."""
        self.scorer.after_pass = self.passed
        try:
            self.score_all(self.wanted())
        finally:
            self.scorer.after_pass = lambda: None
        self.write()

    def score_all(self, wanted: Iterator[Wanted]) -> None:
        """As `run`, without the last write. A record is complete when its last window has been scored."""
        found, done = self.scorer.run(wanted), 0
        while True:
            with trace.span(trace.COMPUTE), phase(self.report, "run"):
                one = next(found, None)
            self.skip_bad()
            if one is None:
                return
            done += 1
            if done == len(self.pieces[0].wanted):
                done = 0
                self.keep(self.pending.popleft(), self.pieces.popleft())

    def passed(self) -> None:
        """Report the shard's progress after each pass of the model."""
        if self.expected:
            waiting = sum(1 for pieces in self.pieces if not pieces.computed)
            self.tell(min((self.records - waiting) / self.expected, 1.0))

    def tell(self, share: float | None) -> None:
        """Report the shard's progress. share: the finished fraction of its work."""
        self.beat(self.records - len(self.pending), share)

    def wanted(self) -> Iterator[Wanted]:
        """Yield the sequences to compute. Bad texts wait in `pending` to be written in order."""
        batches = self.reader.batches(READ)
        while True:
            with trace.span(trace.READ), phase(self.report, "read"):
                batch = next(batches, None)
            if batch is None:
                return
            self.expect(len(batch.records), batch.end)
            yield from self.accepted(batch)

    def accepted(self, batch: ScoredBatch[Pieces]) -> Iterator[Wanted]:
        """Yield the sequences of a batch's good texts, and add all its texts to `pending`."""
        for record, pieces in zip(batch.records, batch.contents, strict=True):
            self.pending.append(record)
            self.records += 1
            if pieces is not None:
                self.pieces.append(pieces)
                self.read += sum(len(one.tokens) for one in pieces.wanted)
                yield from pieces.wanted

    def run_alone(self, skip: dict[int, str]) -> None:
        """Score one text after the other, because one may have killed a worker. skip: these texts, with the reason."""
        for batch in self.reader.batches(1):
            (record,) = batch.records
            if record.line in skip:
                dead = replace(record, error=record.error or RecordError(record.line, "", skip[record.line]))
                batch = ScoredBatch([dead], [None], batch.end)
            else:
                self.beat.at(record.line)
            self.score_all(self.accepted(batch))
        self.write()

    def keep(self, record: Record, pieces: Pieces) -> None:
        """Add the scores of one text to the results, or an error if they are not finite."""
        if pieces.failed:
            self.fail(replace(record, error=RecordError(record.line, "", NOT_FINITE)))
            return
        found = pieces.score()
        self.tokens += len(found.token_ids)
        self.cut += found.cut > 0 or len(pieces.wanted) > 1
        self.values += len(found.token_ids)
        self.results.append(
            (record, Scores(found.token_ids, found.logprobs, found.logprob, found.is_greedy, found.cut))
        )


def _load(task: ScoreTask, report: Report, say: Say) -> LanguageModel:
    job = task.job
    with phase(report, "load", say, "Loading weights"):
        config, weights = read_weights(job.model, type(task.config))
    with phase(report, "prepare", say, "Preparing model"):
        model = build(config, weights, dtype=job.dtype, device=job.device, without=job.settings.without)
    model.stop_ids = eos_token_ids(job.model) or config.stop_ids
    with phase(report, "compile", say, "Compiling or loading kernels"):
        tokens = np.zeros(min(3, config.sizes.context), np.int64)  # several tokens, so that attention runs
        list(model.score([(tokens[:1], tokens[1:])], max_batch_memory=job.batch_memory))
    return model
