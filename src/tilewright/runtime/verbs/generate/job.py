"""The options of `tilewright generate`, and their checks."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.errors import InputError, UsageError, counted
from tilewright.formats.completions import ANSWER
from tilewright.formats.files import InputFile
from tilewright.formats.sampling_fields import is_known
from tilewright.generation.sampling import SamplingParams
from tilewright.models.decoder_config import DecoderConfig
from tilewright.ops.attention import bytes_a_sequence
from tilewright.runtime.reports import TokensReport
from tilewright.runtime.verbs.model_job import WITH_FIELDS, RecordsJob, check_records

FEW_SEQUENCES = 16  # sequences per batch: with fewer, reading the weights limits the speed of the products
COURSE_PROMPT = 16  # token ids per prompt in a binary file


@dataclass
class GenerateJob(RecordsJob):
    """The options of a generate job.

    input, output: .jsonl (JSON lines), .csv, .tsv, .parquet, .txt (one prompt or completion per line), or .bin (int32
    token ids). params: sampling parameters of all prompts; a JSON line may have its own. seed: used if neither has
    one. batch_memory: bytes for keys and values; None: see `LanguageModel.generate`. answers: in a binary output up to
    0.05 % of the tokens may differ from the answers; other outputs must be equal. A binary file cannot hold errors.
    """

    ANSWER = ANSWER
    FOLDERS = True
    FIELD_OPTION = "--prompt-field"

    input: str
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0, max_tokens=8))
    seed: int = 0
    batch_memory: int | None = None

    @property
    def is_binary(self) -> bool:
        """True if the output is a .bin, which cannot hold errors and has the same number of tokens for each prompt."""
        return self.form == ".bin"

    @property
    def has_own_params(self) -> bool:
        """True if a prompt may have its own sampling parameters."""
        return self.kind in WITH_FIELDS


@dataclass
class GenerateReport(TokensReport):
    """The report of a generate job.

    tokens: generated tokens. prompt_tokens: tokens of all prompts. cut: prompts whose completions filled the context
    before they had all requested tokens. undrawn: prompts at temperature 0 with their own seed, top_k, top_p or min_p,
    which have no effect there. unused_rungs: forced rungs, as "OP=RUNG", of operations that no prompt needed.
    """

    prompt_tokens: int = 0
    undrawn: int = 0
    unused_rungs: list[str] = field(default_factory=list)


def beyond_context(max_tokens: int, config: DecoderConfig) -> str:
    """The notice that no prompt can get `max_tokens` tokens, because the context is too short; else ""."""
    if max_tokens < config.context:
        return ""
    room = f"the model's context of {config.context:,} tokens, which holds the prompt, too"
    return f"{max_tokens:,} new tokens (--max-tokens) are more than fit: completions end at the end of {room}"


def small_batches(job: GenerateJob, config: DecoderConfig) -> str:
    """The notice that batch_memory holds fewer than FEW_SEQUENCES sequences, which is slow on the CPU; else ""."""
    if job.batch_memory is None or job.device != "cpu":
        return ""
    sizes = config.sizes
    positions = min(1 + job.params.max_tokens, sizes.context)
    each = sizes.layers * bytes_a_sequence(sizes.heads, positions, sizes.head_size, job.dtype)
    most = job.batch_memory // each
    if not 0 < most < FEW_SEQUENCES:  # 0: a later check refuses the job
        return ""
    what = f"--max-batch-memory of {job.batch_memory:,} bytes holds at most {counted(most, 'sequence')} at once"
    return f"{what}, {each:,} bytes each. Small batches are slow; the default is 1G"


def check(job: GenerateJob) -> None:
    """Raises UsageError or InputError for names and options that do not go together."""
    check_records(job)
    if job.content_field is not None and is_known(job.content_field, body=False):
        raise UsageError(f"--prompt-field is {job.content_field!r}, which is a sampling field",
                         remedy="rename the field of the input")  # fmt: skip
    if job.dtype == "float16" and job.device == "cpu":
        raise UsageError(
            "dtype is 'float16', which is not supported on the CPU", remedy="use bfloat16, or --device cuda"
        )
    if job.is_binary:
        if job.kind != ".bin":
            raise UsageError("a binary output needs an input of token ids in a .bin file", path=job.output,
                             remedy="name the output .jsonl or .txt")  # fmt: skip
        if job.params.n > 1 or job.params.logprobs is not None or job.params.stop or job.params.stop_token_ids:
            what = "--samples, --logprobs, --stop and --stop-id need .jsonl"
            raise UsageError(f"a binary output holds --max-tokens tokens per prompt: {what}")
    if job.form == ".txt" and job.params.n > 1:
        raise UsageError("a text output holds one completion per prompt: several need .jsonl", path=job.output)
    if job.form == ".txt" and job.params.logprobs is not None:
        raise UsageError("a text output cannot hold log-probabilities: they need .jsonl", path=job.output)
    if job.answers:
        _check_answers(job, job.answers)


def _check_answers(job: GenerateJob, answers: str) -> None:
    """Raises UsageError or InputError if the output of this job cannot be compared with the reference."""
    with InputFile(answers, "answers") as file:
        if answers.endswith(".jsonl") != job.output.endswith(".jsonl") or job.output.endswith((".txt", ".parquet")):
            raise UsageError("this output cannot be compared with that reference", path=answers,
                             remedy="compare .jsonl with .jsonl, and binary tokens with binary tokens")  # fmt: skip
        if job.is_binary and file.size % (4 * job.params.max_tokens):
            one = 4 * job.params.max_tokens
            what = f"the answers have {file.size:,} bytes, which is no multiple of the {one} of one answer"
            raise InputError(what, path=answers, remedy="give --max-tokens as it was when the answers were made")


def check_model(job: GenerateJob, config: DecoderConfig, has_tokenizer: bool) -> None:
    """Raises UsageError for options that this model cannot satisfy for any prompt."""
    if not has_tokenizer and (job.form == ".txt" or job.params.stop):
        what, instead = "the output is text", "name the output .jsonl, which then has token ids"
        if job.params.stop:
            what, instead = "--stop has text", "give --stop-id ID in place of --stop TEXT"
        raise UsageError(f"{what}, and the model has no tokenizer.json", path=job.model,
                         remedy=f"add the model's tokenizer.json, or {instead}")  # fmt: skip
    if beyond := [token for token in job.params.stop_token_ids if token >= config.vocab_size]:
        raise UsageError(f"--stop-id is {beyond[0]}; the model's tokens are 0 to {config.vocab_size - 1}")
    job.params.check_for(vocabulary=config.vocab_size, context=config.context, has_tokenizer=has_tokenizer)
    length = COURSE_PROMPT + job.params.max_tokens
    if job.is_binary and length > config.context:
        raise UsageError(
            f"{COURSE_PROMPT} tokens of a prompt and {job.params.max_tokens} new ones are {length}; the context of the "
            f"model is {config.context}",
            path=job.model,
            remedy="ask for fewer --max-tokens",
        )
