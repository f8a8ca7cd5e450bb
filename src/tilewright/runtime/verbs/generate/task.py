"""The shards of `tilewright generate`, and the checks of a job against its model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from tilewright.errors import counted
from tilewright.formats.completions import empty_line, error_line
from tilewright.formats.models import eos_token_ids
from tilewright.formats.prompts import PromptFile, PromptReader, open_prompts
from tilewright.formats.tokenizer import Tokenizer
from tilewright.generation.sampling import SamplingParams
from tilewright.models.decoder_config import DecoderConfig
from tilewright.runtime.forced_rungs import Idle, check_rungs, without_rope
from tilewright.runtime.inputs import SCAN_BYTES, Sizing, cut_lines, cut_rows
from tilewright.runtime.jobs.cut import Cut, Records
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.ids import settle_ids
from tilewright.runtime.jobs.manifest import Value
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Place
from tilewright.runtime.load import config_of, tokenizer_of
from tilewright.runtime.reports import Say, quiet
from tilewright.runtime.text_inputs import check_has_ids, check_tokenizer_fits
from tilewright.runtime.verbs.generate.job import (
    COURSE_PROMPT,
    GenerateJob,
    beyond_context,
    check,
    check_model,
    small_batches,
)
from tilewright.runtime.verbs.generate.worker import DEFAULTS, GenerateWorker
from tilewright.runtime.verbs.records_task import AsFolder, AsParquet, RecordsTask, notices
from tilewright.switches import check_switches

ID_LINE = '{"id": 7, "prompt_token_ids": [1, 2]}'
ADDED = (  # parameters that manifests of earlier versions do not have
    "presence_penalty", "frequency_penalty", "logit_bias", "bad_words", "allowed_token_ids", "suppress_tokens",
    "no_repeat_ngram_size", "include_stop_str_in_output",
)  # fmt: skip


def task_of(job: GenerateJob, say: Say = quiet, workers: int = 1) -> GenerateTask:
    """Check everything that can be checked before the work. Raises UsageError, InputError and ResourceError."""
    job = job.as_called()
    check(job)
    config, tokenizer = config_of(job.model, DecoderConfig), tokenizer_of(job.model)
    eos_token_ids(job.model)  # raises for invalid ids before the weights are read
    job.measure()
    if tokenizer is None:
        check_has_ids(job.text, job.model, ID_LINE, job.content_field)
    else:
        check_tokenizer_fits(job.text, tokenizer, config.vocab_size, ID_LINE, job.content_field)
    check_model(job, config, tokenizer is not None)
    if job.is_binary:
        job.params = replace(job.params, ignore_eos=True)
    kind = RowsTask if job.form == ".parquet" else FolderTask if job.is_folder else GenerateTask
    check_switches("generate", job.settings.without, job.device, job.dtype)
    check_forced(None if job.has_own_params else job.params, job.settings.rungs, job.device, config)
    task = kind(job, config, say, workers, tokenizer=tokenizer)
    with closing(task.reader(SCAN_BYTES)) as reader:
        task.size = reader.bytes
    say(f"Checking input: {counted(task.size, 'byte')}...Done!")
    for notice in (beyond_context(job.params.max_tokens, config), small_batches(job, config), *notices(job)):
        if notice:
            say(notice)
    return task


@dataclass
class GenerateTask(RecordsTask):
    """The `Task` of a generate job. tokenizer: only in the process that made the task; workers load their own."""

    job: GenerateJob
    config: DecoderConfig
    say: Say = quiet
    workers: int = 1
    size: int = 0
    tokenizer: Tokenizer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"tokenizer": None}

    def reader(self, scan: int = 0) -> PromptReader:
        """Open the input. scan: bytes of a binary input that are checked now."""
        config, encode = self.config, self.tokenizer.encode if self.tokenizer else None
        return open_prompts(self.job.text, encode=encode, vocabulary=config.vocab_size,
                             max_length=config.context - 1, length=COURSE_PROMPT, count=self.job.count,
                            scan=scan, fields=self.job.fields)  # fmt: skip

    def fingerprint(self) -> dict[str, Value]:
        job = self.job
        given = {one.name: getattr(job.params, one.name) for one in fields(job.params)}
        new = {name for name in ADDED if given[name] == getattr(DEFAULTS, name)}  # for jobs of earlier versions
        sampling = {f"sampling.{name}": value for name, value in given.items() if name not in new}
        own = {name: _sealed(value) for name, value in sampling.items()}
        form = "binary" if job.form == ".bin" else job.form.removeprefix(".")
        return job.fingerprint("generate") | {"count": job.count, "seed": job.seed, "output": form} | own

    def cut(self, shard_size: int | None) -> Cut:
        sizing = sizing_for(self.job.device, self.job.params).for_workers(self.workers)
        if self.job.kind != ".bin":
            return cut_lines(self.job.text, self.job.count, shard_size, sizing)
        return cut_rows(self.size // (4 * COURSE_PROMPT), 4 * COURSE_PROMPT, shard_size, sizing)

    def open(self, place: Place) -> GenerateWorker:
        return GenerateWorker(self)

    def settle(self, directory: JobDirectory, stop: Stop) -> None:
        if not isinstance(directory.manifest.cut, Records):
            line = empty_line if self.job.form == ".txt" else error_line
            with closing(self.reader()) as reader:
                assert not isinstance(reader, PromptFile)
                settle_ids(directory, reader, self.id_names, line, stop)


def check_forced(params: SamplingParams | None, rungs: Mapping[str, str], device: str, config: DecoderConfig) -> None:
    """Raises UsageError for a forced rung that would have no effect.

    params: of all prompts; None: each prompt may have its own.
    """
    idle = without_rope(config.calls) | (idle_operations(params) if params else {})
    check_rungs("generate", rungs, device, idle, config.calls)


def idle_operations(params: SamplingParams) -> dict[str, Idle]:
    """The operations that a job does not run if all its prompts have these parameters."""
    runs = params.choosing_operations
    if "sample" not in runs:
        remedy = "force a rung of matmul_argmax, or give a --temperature above 0"
        return {"sample": Idle("where the likeliest token is taken", "matmul_argmax", remedy)}
    if "matmul_argmax" not in runs:
        remedy = "force a rung of sample, or give --temperature 0 without penalties, bad words and log-probabilities"
        return {"matmul_argmax": Idle("where tokens are drawn or logits are changed", "sample", remedy)}
    return {}


def _sealed(value: Any) -> Value:
    """Convert a parameter to the form that the manifest stores."""
    if isinstance(value, tuple):
        return [f"{each[0]}: {each[1]!r}" if isinstance(each, tuple) else each for each in value]
    return value


class FolderTask(AsFolder, GenerateTask):
    """A generate task whose output is a folder of texts."""


class RowsTask(AsParquet, GenerateTask):
    """A generate task with a Parquet output, one row per completion."""

    columns: ClassVar = {
        "index": "int32", "text": "string", "token_ids": "list<int32>", "finish_reason": "string",
        "logprobs": "logprobs", "error": "error",
    }  # fmt: skip


def sizing_for(device: str, params: SamplingParams) -> Sizing:
    """Prompts per shard: at most about a minute of the 124M model on two cores; on a GPU enough to fill its batches.

    On an H200 each shard adds 0.1 s, and 3 << 19 tokens take 3 s. A small job has smaller shards, if these are not much
    slower. Measured with 1,536 prompts on two cores of a Xeon: poet with 64 new tokens took the same time in shards of
    256 as in shards of 1,024, and a quarter longer in shards of 128. The 124M model in bfloat16 with 8 new tokens took
    a tenth longer in shards of 512 than in one shard.
    """
    each = params.max_tokens * params.n
    if device == "cpu":
        return Sizing(min(max(65536 // each, 256), 8192), 128, most_bytes=2 << 20, alone=max(8192 // each, 512))
    return Sizing(min(max((8 << 20) // each, 5120), 1 << 18), max((3 << 19) // each, 2560), most_bytes=128 << 20)
