"""`tilewright bench embed` and `tilewright bench score`: texts that a model only reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from tilewright.cli._bench import Against, Common, Rounds, begin, finish, indented, names
from tilewright.cli._options import Threads, verb
from tilewright.cli._output import say, show
from tilewright.errors import counted

if TYPE_CHECKING:
    from tilewright.bench.results import Row

LENGTHS = "A text file. Only the lengths of its lines are used."
Class = Literal["float32", "bfloat16", "float16"]


@dataclass
class Embed(Common):
    """Options of `bench embed`."""

    against: Against = None
    data: Annotated[
        str | None,
        Option("--input", "-i", metavar="FILE", help=LENGTHS, show_default="random lengths, 28 tokens on average"),
    ] = None
    model: Annotated[
        Literal["minilm", "distilbert", "bert"],
        Option(help="Size of the model: that of all-MiniLM-L6, DistilBERT-base or BERT-base."),
    ] = "minilm"
    count: Annotated[
        int | None,
        Option("--count", "-n", min=1, metavar="N", help="Number of texts.", show_default="512, or 32,768 on a GPU"),
    ] = None
    dtype: Annotated[Class, Option(help="Precision of the products.")] = "float32"
    threads: Threads = None
    rounds: Rounds = 10


@verb(Embed)
def embed(options: Embed) -> None:
    """Embed texts with an encoder with random weights, beside PyTorch and OpenVINO; on a GPU, beside PyTorch.

    \b
    tilewright bench embed --model minilm --threads 2

    The token ids are random. The lengths of the texts are drawn from those of the lines of --input, at 1.3 tokens per
    word. The peers take batches of 32 texts of similar length, as sentence-transformers does, on a GPU also of 512.
    """
    watch, device = begin(options, options.dtype, options.threads)
    from tilewright.bench.workloads.embed import COUNT, PEERS, SIZES, Setting, bench, random_texts, read_lines
    from tilewright.models.bert_config import BertConfig
    from tilewright.ops.core.launch import thread_count

    config, count = BertConfig(**SIZES[options.model]), options.threads or thread_count()
    texts = random_texts(config, read_lines(options.data) if options.data else None, options.count or COUNT[device])
    say(f"{counted(len(texts), 'text')} of {sum(map(len, texts)) / len(texts):.1f} tokens on average, {options.model}, "
        f"{options.dtype}, {counted(count, 'thread') if device == 'cpu' else 'on the GPU'}")  # fmt: skip
    against, rounds = names(options.against, PEERS[device]), options.rounds or 10
    rows = bench(Setting(config, texts, options.model, options.dtype, count, against, rounds, device), indented)
    _show(rows)
    finish(rows, options, watch)


@dataclass
class Score(Common):
    """Options of `bench score`."""

    against: Against = None
    data: Annotated[
        str | None,
        Option("--input", "-i", metavar="FILE", help=LENGTHS, show_default="random lengths, 80 tokens on average"),
    ] = None
    model: Annotated[str | None, Option(metavar="PATH", help="A GPT-2.", show_default="124M random weights")] = None
    count: Annotated[
        int | None,
        Option("--count", "-n", min=1, metavar="N", help="Number of texts.", show_default="64, or 4,096 on a GPU"),
    ] = None
    answers: Annotated[
        int, Option(metavar="N", min=1, help="Continuations per context, like several answers to one question.")
    ] = 1
    dtype: Annotated[Class, Option(help="Precision of the products.")] = "float32"
    threads: Threads = None
    rounds: Rounds = 3


@verb(Score)
def score(options: Score) -> None:
    """Score given continuations with a GPT-2, beside PyTorch and lm-evaluation-harness.

    \b
    tilewright bench score --answers 4 --threads 2

    The token ids are random. A context is as long as a line of --input, at 1.3 tokens per word; a continuation has 2 to
    24 tokens. The peers take batches of 16 texts of similar length, or 64 on a GPU. The peer lm-eval is the `hf`
    backend of lm-evaluation-harness (pip install -e '.[eval]' in a clone).
    """
    watch, device = begin(options, options.dtype, options.threads)
    from tilewright.bench.workloads.embed import read_lines
    from tilewright.bench.workloads.gpt2 import random_weights
    from tilewright.bench.workloads.score import COUNT, PEERS, Setting, bench, random_pairs
    from tilewright.models.gpt2 import GPT2Config
    from tilewright.ops.core.launch import thread_count
    from tilewright.runtime.load import config_of, read_weights

    config = config_of(options.model, GPT2Config) if options.model else GPT2Config()
    lines, count = read_lines(options.data) if options.data else None, options.threads or thread_count()
    pairs = random_pairs(config, lines, options.count or COUNT[device], options.answers)
    weights = read_weights(options.model)[1] if options.model else random_weights(config, seed=1)
    setting = Setting(
        config, weights, pairs, options.answers, options.dtype, count, names(options.against, PEERS),
        options.rounds or 3, device,
    )  # fmt: skip
    where = counted(count, "thread") if device == "cpu" else "on the GPU"
    say(f"{setting.size}, {setting.tokens / len(pairs):.1f} tokens on average, {options.dtype}, {where}")
    rows = bench(setting, indented)
    _show(rows)
    finish(rows, options, watch)


def _show(rows: list[Row]) -> None:
    """Print the rate of each library."""
    for row in rows:
        ratio = f"   {row.peer_ratio:.2f} x {row.peer}" if row.peer_ratio else ""
        ratio += f"   {row.roof_share:.1%} of the roof" if row.roof_share else ""
        show(f"{row.rung:<24} {row.rows / row.median_s:>12,.1f} texts/s{ratio}")
