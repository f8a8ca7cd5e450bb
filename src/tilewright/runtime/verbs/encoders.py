"""What `classify` and `embed` share where the model is a BERT: its checks, the size of shards, the memory of a job."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tilewright.backends.footprint import ALWAYS, PREPARING, RUNNING, Part
from tilewright.errors import InputError
from tilewright.models.bert import pass_rows
from tilewright.models.bert_config import BertConfig
from tilewright.runtime.inputs import Sizing
from tilewright.runtime.load import has_tokenizer
from tilewright.runtime.plan import is_compiled, widened
from tilewright.runtime.verbs.model_job import RecordsJob

SHARD_FLOPS = {"cpu": 5e11, "cuda": 5e14}  # operations per shard: two to five seconds on 2 cores, or on a GPU
SHARD_TEXTS = 1 << 16  # the most texts per shard on a GPU
TYPICAL = 64  # assumed tokens per text when the size of a shard is chosen
COMPILING = 121 << 20  # bytes that Numba and LLVM hold after compiling the kernels (measured: Numba 0.68, x86-64)
RECORD = 1500  # bytes of Python objects per line that is being processed
PAGE = 4096
WORDS = "embeddings.word_embeddings.weight"


def check_encoder(job: RecordsJob, config: BertConfig) -> None:
    """Raises InputError for a model directory without a tokenizer."""
    if not has_tokenizer(job.model):
        remedy = "get it from where the model came: AutoTokenizer's save_pretrained writes it"
        raise InputError("the model has no tokenizer.json", path=job.model, remedy=remedy)


def encoder_sizing(config: BertConfig, device: str, batch: int) -> Sizing:
    """The size of shards. batch: texts at most on a CPU."""
    most = batch if device == "cpu" else SHARD_TEXTS
    records = max(16, min(most, int(SHARD_FLOPS[device] / config.flops(TYPICAL))))
    return Sizing(records, max(16, records // 4))


def rows_of(config: BertConfig, device: str, batch: int, lengths: np.ndarray) -> int:
    """Tokens of the largest pass. batch: texts. lengths: tokens of a sample of texts."""
    if not len(lengths):
        return 0
    return max(int(lengths.max()), min(pass_rows(config, device), math.ceil(batch * lengths.mean())))


def encoder_on_gpu(
    job: RecordsJob, config: BertConfig, batch: int, lengths: np.ndarray, memory: int
) -> tuple[Part, ...]:
    """Memory of a worker's GPU, which has `memory` bytes; other parameters as for `encoder_memory`. Raises
    ResourceError if it does not suffice."""
    return config.on_gpu(job.dtype, max(rows_of(config, job.device, batch, lengths), 1), memory)


def encoder_memory(
    job: RecordsJob, config: BertConfig, mapped: Mapping[str, np.ndarray], batch: int, lengths: np.ndarray, words: int
) -> tuple[Part, ...]:
    """Memory of a worker besides the program. mapped: the weights. lengths, words: of a sample of texts, the tokens of
    each, and the number of different ones."""
    memory, longest = config.memory(job.dtype), int(lengths.max(initial=0))
    rows = rows_of(config, job.device, batch, lengths)
    rest = sum(array.nbytes for name, array in mapped.items() if name != WORDS)
    table = min(mapped[WORDS].nbytes, words * max(4 * config.hidden_size, PAGE) + PAGE)
    compiled = is_compiled("attention*", "embedding*", "layernorm*")
    return (
        Part("compiling kernels, the first time", 0 if compiled else COMPILING),
        Part("weights, prepared", memory.prepared + widened(mapped), ALWAYS),
        Part("weights file, while they are prepared", max(rest, memory.preparing), PREPARING),
        Part("embedding rows, mapped", table, RUNNING),
        Part("batch and records", rows * config.row_bytes(job.dtype) + batch * (RECORD + 4 * longest), RUNNING),
    )
