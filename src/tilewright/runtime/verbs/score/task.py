"""The shards of `tilewright score`, and the checks of a job against its model."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar

from tilewright.errors import ResourceError, UsageError, counted
from tilewright.formats.models import eos_token_ids
from tilewright.formats.scored import ScoredLines, Tokens, error_line, open_scored
from tilewright.formats.tokenizer import Tokenizer
from tilewright.generation.attention import BATCH_MEMORY
from tilewright.generation.scored_texts import Pieces, ScoringLimits, default_start, pieces_of_tokens
from tilewright.generation.scoring import slot_length
from tilewright.models.decoder_config import DecoderConfig
from tilewright.ops.attention import bytes_a_sequence
from tilewright.runtime.forced_rungs import check_rungs, without_rope
from tilewright.runtime.inputs import Sizing, cut_lines
from tilewright.runtime.jobs.cut import Cut
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.ids import settle_ids
from tilewright.runtime.jobs.manifest import Value
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Place
from tilewright.runtime.load import config_of, tokenizer_of
from tilewright.runtime.reports import Say, quiet
from tilewright.runtime.text_inputs import check_has_ids, check_tokenizer_fits
from tilewright.runtime.verbs.records_task import AsParquet, RecordsTask, notices
from tilewright.runtime.verbs.score.job import ScoreJob, check_paths
from tilewright.runtime.verbs.score.worker import ScoreWorker
from tilewright.switches import check_switches

ID_LINE = '{"id": 7, "context": [1, 2], "continuation": [3]}'
SIZING = {
    "cpu": Sizing(4096, 128, most_bytes=2 << 20, alone=256),  # 256 texts of 100 tokens take the 124M model a minute
    "cuda": Sizing(1 << 16, 4096, most_bytes=32 << 20),
}


def task_of(job: ScoreJob, say: Say = quiet, workers: int = 1) -> ScoreTask:
    """Check everything that can be checked before the work. Raises UsageError, InputError and ResourceError."""
    job = job.as_called()
    check_paths(job)
    kind = RowsTask if job.form == ".parquet" else ScoreTask
    check_switches("score", job.settings.without, job.device, job.dtype)
    config, tokenizer = config_of(job.model, DecoderConfig), tokenizer_of(job.model)
    ends = eos_token_ids(job.model) or config.stop_ids
    check_rungs("score", job.settings.rungs, job.device, without_rope(config.calls), config.calls)
    job.measure()
    if tokenizer is None:
        check_has_ids(job.text, job.model, ID_LINE, job.content_field)
    else:
        check_tokenizer_fits(job.text, tokenizer, config.sizes.vocabulary, ID_LINE, job.content_field)
    encode = tokenizer.encode if tokenizer else None
    start = job.prefix_token if job.prefix_token is not None else default_start(encode, ends)
    if start is not None and not 0 <= start < config.sizes.vocabulary:
        rule = f"the model's tokens are 0 to {config.sizes.vocabulary - 1}"
        raise UsageError(parameter="--prefix-token", value=str(start), rule=rule)
    check_memory(job, config)
    limits = ScoringLimits(config.sizes.context, start, job.truncate)
    task = kind(job, config, limits, say, workers, tokenizer=tokenizer)
    with closing(task.reader()) as reader:
        say(f"Checking input: {counted(reader.bytes, 'byte')}...Done!")
    for notice in notices(job):
        say(notice)
    return task


def check_memory(job: ScoreJob, config: DecoderConfig) -> None:
    """Raises ResourceError if the keys and values of one text may take more than batch_memory."""
    if job.device != "cpu" and job.batch_memory is None:
        return  # a share of what is free there
    sizes, allowed = config.sizes, BATCH_MEMORY if job.batch_memory is None else job.batch_memory
    shortest = slot_length(1, sizes.context)
    each = sizes.layers * bytes_a_sequence(sizes.heads, shortest, sizes.head_size, job.dtype, job.device)
    if each > allowed:
        what = f"the keys and values of {shortest} positions take {each:,} bytes; {allowed:,} are allowed"
        raise ResourceError(what, remedy="allow more memory (--max-batch-memory)")


@dataclass
class ScoreTask(RecordsTask):
    """The `Task` of a score job. tokenizer: only in the process that made the task; workers load their own."""

    job: ScoreJob
    config: DecoderConfig
    limits: ScoringLimits
    say: Say = quiet
    workers: int = 1
    tokenizer: Tokenizer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"tokenizer": None}

    def reader(self) -> ScoredLines[Pieces]:
        """Open the input. The reader yields its records as token ids."""
        encode = self.tokenizer.encode if self.tokenizer else None

        def prepare(context: Tokens | None, scored: Tokens) -> Pieces:
            return pieces_of_tokens(context, scored, self.limits, encode)

        return open_scored(self.job.text, prepare=prepare, vocabulary=self.config.sizes.vocabulary,
                           count=self.job.count, fields=self.job.fields)  # fmt: skip

    def fingerprint(self) -> dict[str, Value]:
        job, form = self.job, self.job.form.removeprefix(".")
        own = {"count": job.count, "output": form, "truncate": job.truncate, "prefix_token": self.limits.start}
        return job.fingerprint("score") | own

    def cut(self, shard_size: int | None) -> Cut:
        return cut_lines(self.job.text, self.job.count, shard_size, SIZING[self.job.device].for_workers(self.workers))

    def open(self, place: Place) -> ScoreWorker:
        return ScoreWorker(self)

    def settle(self, directory: JobDirectory, stop: Stop) -> None:
        with closing(self.reader()) as reader:
            settle_ids(directory, reader, ("id",), error_line, stop)


class RowsTask(AsParquet, ScoreTask):
    """A score task with a Parquet output."""

    columns: ClassVar = {
        "logprob": "float64", "is_greedy": "bool_", "token_ids": "list<int32>", "token_logprobs": "list<float32>",
        "cut": "int32", "error": "error",
    }  # fmt: skip
