"""The worker of `tilewright embed`: the texts of a shard -> their vectors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tilewright.formats.embedding_lines import Embedded, EmbeddingWriter, RowWriter, TextBatch
from tilewright.formats.records import RecordError
from tilewright.formats.sentence_encoder import NO_TOKEN
from tilewright.models.bert import Bert
from tilewright.models.bert_config import BertConfig
from tilewright.runtime.fingerprint import in_force
from tilewright.runtime.jobs import trace
from tilewright.runtime.jobs.cut import Shard
from tilewright.runtime.jobs.directory import Attempt
from tilewright.runtime.jobs.task import Beat
from tilewright.runtime.kernel_cache import compiling_told
from tilewright.runtime.load import build, read_weights, text_vectors
from tilewright.runtime.reports import Report, Say, phase

if TYPE_CHECKING:
    from tilewright.runtime.verbs.embed.task import EmbedTask


class EmbedWorker:
    """A `Worker`: loads the model, then embeds shards with it."""

    def __init__(self, task: EmbedTask) -> None:
        self.task, self.job, self.report = task, task.job, Report()
        with ExitStack() as stack:
            stack.enter_context(in_force(task.job.settings))
            encoder = task.encoder()
            self.skip = 0 if task.modules.include_prompt else encoder.prompt_tokens
            self.reader = stack.enter_context(closing(task.reader(encoder)))
            with compiling_told(task.say):
                self.model = self._load(task.say)
            self.open = stack.pop_all()

    def _load(self, say: Say) -> Bert:
        job, report = self.job, self.report
        with phase(report, "load", say, "Loading weights"):
            config, weights = read_weights(job.model, BertConfig)
        with phase(report, "prepare", say, "Preparing model"):
            model = build(config, weights, dtype=job.dtype, device=job.device)
            model.vectors = text_vectors(self.task.modules, config.hidden_size, job.dtype)
        with phase(report, "compile", say, "Compiling or loading kernels"):
            model.embeddings(np.zeros((1, config.shortest), np.int32))
        return model

    def run(self, shard: Shard, out: Attempt, beat: Beat) -> int:
        plain = self.job.form == ".parquet"
        writer = RowWriter(out, self.task.size) if self.job.is_array else EmbeddingWriter(out, plain=plain)
        records, cut, share = 0, 0, None
        for batch in self._batches(shard, beat):
            beat(records, share)
            with trace.span(trace.COMPUTE), phase(self.report, "run"):
                found = self._embedded(batch)
            with trace.span(trace.WRITE), phase(self.report, "write"):
                for i, one in enumerate(found):
                    if one.record.error:
                        error = self.reader.located(one.record.error)
                        out.error(error)
                        found[i] = one._replace(record=replace(one.record, error=error))
                writer.write(found)
            records, cut, share = records + len(batch), cut + batch.cut, shard.share(batch.end)
        out.notes += b"".join(hashes.tobytes() for hashes in self.reader.hashes)
        out.figures = self.report.take_seconds() | {"cut": cut}
        return records

    def _batches(self, shard: Shard, beat: Beat) -> Iterator[TextBatch]:
        self.reader.only(shard.lines(self.reader.file))
        found = self.reader.batches(1 if shard.alone else self.job.batch)
        skip = dict(shard.skip)
        while True:
            with trace.span(trace.READ), phase(self.report, "read"):
                batch = next(found, None)
            if batch is None:
                return
            yield self._alone(batch, skip, beat) if shard.alone else batch

    def _alone(self, batch: TextBatch, skip: dict[int, str], beat: Beat) -> TextBatch:
        """Prepare a batch of one record. If the record has killed a worker, it becomes an error and does not run."""
        (record,) = batch.records
        if record.line not in skip:
            beat.at(record.line)
            return batch
        bad = replace(record, error=record.error or RecordError(record.line, "", skip[record.line]))
        return replace(batch, records=[bad], tokens=batch.tokens[:0], cut=0)

    def _embedded(self, batch: TextBatch) -> list[Embedded]:
        """Embed a batch. Returns all its records with their vectors."""
        whole = self.model.embeddings(batch.tokens, skip=self.skip)
        counts = (batch.tokens != NO_TOKEN).sum(axis=1)
        found, at = [], 0
        for record, request in zip(batch.records, batch.requests, strict=True):
            if record.error:
                found.append(Embedded(record, request, (), 0))
                continue
            end = at + len(request.contents)
            vectors = self.model.vectors.cut(whole[at:end], request.dimensions or self.task.size)
            if not np.isfinite(vectors).all():
                what = "the vector is not finite: the weights are too large"
                record, vectors = replace(record, error=RecordError(record.line, "", what)), vectors[:0]
            found.append(Embedded(record, request, list(vectors), int(counts[at:end].sum())))
            at = end
        return found

    def close(self) -> None:
        """Free the model. Called after the last shard."""
        self.open.close()
