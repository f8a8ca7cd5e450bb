"""The worker of `tilewright classify`: the sentences of a shard -> labels or logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tilewright.errors import InputError
from tilewright.formats.course import LogitsWriter, TokenFile
from tilewright.formats.jsonl import LabelWriter
from tilewright.formats.records import Batch, RecordError
from tilewright.models.bert import Bert
from tilewright.models.textcnn import TextCNN, TextCNNConfig
from tilewright.runtime.devices import gpu_faults
from tilewright.runtime.fingerprint import in_force
from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.cut import Records, Shard
from tilewright.runtime.jobs.directory import Attempt
from tilewright.runtime.jobs.task import Beat, Place
from tilewright.runtime.jobs.unchanged import AsBegun
from tilewright.runtime.kernel_cache import compiling_told
from tilewright.runtime.load import Classifier, build, read_weights
from tilewright.runtime.reports import Report, Say, phase
from tilewright.runtime.verbs.classify.saved_table import KeptTable

if TYPE_CHECKING:
    from tilewright.runtime.verbs.classify.task import ClassifyTask


class ClassifyWorker:
    """A `Worker`: loads the model, then classifies shards with it."""

    def __init__(self, task: ClassifyTask, at: Place) -> None:
        self.task, self.job, self.at = task, task.job, at
        self.report = Report()
        self.kept: KeptTable | None = None
        with ExitStack() as stack:
            stack.enter_context(in_force(task.job.settings))
            if self.job.device != "cpu":
                stack.enter_context(gpu_faults())
            self.reader = stack.enter_context(closing(task.reader()))
            with compiling_told(task.say):
                self.model = self._load(task.say)
            self.open = stack.pop_all()

    def _load(self, say: Say) -> TextCNN | Bert:
        job, report = self.job, self.report
        began = AsBegun.of({name: path for name, path in job.files().items() if name != "input"})
        with phase(report, "load", say, "Loading weights"):
            config, weights = read_weights(job.model, Classifier)
        with phase(report, "prepare", say, "Preparing model"):
            of_textcnn = {"table_memory": job.table_memory, "without": job.settings.without}
            options = of_textcnn if isinstance(config, TextCNNConfig) else {}
            model = build(config, weights, dtype=job.dtype, device=job.device, **options)
        with phase(report, "compile", say, "Compiling or loading kernels"):
            model.logits(np.zeros((1, config.shortest), np.int32))
        if job.table_path and isinstance(model, TextCNN):
            with phase(report, "table", say, "Loading token table"):
                self.kept = KeptTable(model, job.table_path, began)
            if job.settings.is_inline:
                self.task.kept = self.kept
        return model

    def run(self, shard: Shard, out: Attempt, beat: Beat) -> int:
        first = shard.rows.start if isinstance(shard.cut, Records) else 0
        located = self.reader.located
        writer = LogitsWriter(out, first) if self.job.is_binary else LabelWriter(out, self.model.answers, located)
        records, cut, share = 0, 0, None
        for batch in self._batches(shard, beat):
            beat(records, share)
            with trace.span(trace.COMPUTE), phase(self.report, "run"):
                logits = self._logits(batch.tokens) if batch.seconds is None else self._of_pairs(batch)
            with trace.span(trace.WRITE), phase(self.report, "write"):
                for error in [*batch.errors, *writer.write(batch, logits)]:
                    out.error(located(error))
            records, cut, share = records + len(batch), cut + batch.cut, shard.share(batch.end)
        if not isinstance(self.reader, TokenFile):
            out.notes += b"".join(hashes.tobytes() for hashes in self.reader.hashes)
        out.figures = self.report.take_seconds() | {"cut": cut}
        return records

    def _batches(self, shard: Shard, beat: Beat) -> Iterator[Batch]:
        size = 1 if shard.alone else self.job.batch
        if isinstance(self.reader, TokenFile):
            found = self.reader.batches(size, shard.rows)
        else:
            self.reader.only(shard.lines(self.reader.file))
            found = self.reader.batches(size)
        skip, row = dict(shard.skip), shard.rows.start if isinstance(shard.cut, Records) else 0
        while True:
            with trace.span(trace.READ), phase(self.report, "read"):
                batch = next(found, None)
            if batch is None:
                return
            if shard.alone:
                record = batch.records[0].line if batch.records else row
                batch, row = self._alone(batch, record, skip, beat), row + 1
            yield batch

    def _alone(self, batch: Batch, record: int, skip: dict[int, str], beat: Beat) -> Batch:
        """Prepare a batch of one record. If the record has killed a worker, it becomes an error and does not run."""
        if record not in skip:
            beat.at(record)
            return batch
        if batch.records is None:
            raise InputError(f"sentence {record} (from 0) cannot be classified: {skip[record]}", path=self.job.input)
        bad = replace(batch.records[0], error=batch.records[0].error or RecordError(record, "", skip[record]))
        return Batch(batch.tokens[:0], batch.end, [bad])

    def _of_pairs(self, batch: Batch) -> np.ndarray:
        """The logits of a batch that has pairs of texts."""
        assert isinstance(self.model, Bert)
        return self.model.logits(batch.tokens, batch.seconds)

    def _logits(self, tokens: np.ndarray) -> np.ndarray:
        """Compute the batch's logits. If a GPU has too little memory, it is computed in smaller parts."""
        if not len(tokens):
            return self.model.logits(tokens)

        def parts(size: int) -> np.ndarray:
            ends = range(0, len(tokens), size)
            return np.concatenate([self.model.logits(tokens[first : first + size]) for first in ends])

        return self.model.backend.halving(parts, len(tokens))

    def close(self) -> None:
        """Free the model. Called after the last shard."""
        self.open.close()
        if self.kept and not self.job.settings.is_inline and self.at.number == 0:
            self.kept.save()
