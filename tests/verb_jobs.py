"""Jobs of `classify` and `generate` on small models: their inputs, and what an uninterrupted run makes of them."""

import json
import mmap
import os
import shutil
import signal
from pathlib import Path

import numpy as np

from gpt2_models import save
from tilewright.formats.sentence_encoder import encoder_for
from tilewright.generation.sampling import SamplingParams
from tilewright.runtime.convert.models import init_textcnn
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.start import Settings
from tilewright.runtime.load import tokenizer_of
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.classify.task import ClassifyTask
from tilewright.runtime.verbs.generate import GenerateJob, generate

RECORDS = 240
ERRORS = 13  # 8 bad lines, 5 ids that were given before
VERBS = ("classify", "generate")
SAMPLED = SamplingParams(temperature=1, max_tokens=3)


def make(path):
    """Models and inputs of both verbs, each with bad lines and ids given twice; outputs of an uninterrupted run."""
    rng = np.random.default_rng(7)
    init_textcnn(str(path / "textcnn"), 3, vocab_size=50, sequence_length=6, hidden_size=8, num_filters=5,
                 kernel_sizes=(2, 3), hidden_sizes=(7,))  # fmt: skip
    save(path / "gpt2")
    sentences = rng.integers(0, 50, (RECORDS, 6), np.int32)
    sentences.tofile(path / "classify.bin")
    write(path / "classify.jsonl", [{"tokens": row, "custom_id": [0]} for row in sentences.tolist()])
    write(path / "generate.jsonl", [{"prompt": f"the cat {i % 91}"} for i in range(RECORDS)])
    for verb in VERBS:
        job = job_of(path, verb, f"{verb}.jsonl", f"expected.{verb}")
        assert run(job).errors == ERRORS
        shutil.rmtree(f"{job.output}.job")


def write(path, records):
    """JSON lines with ids, of which some are given twice, and with lines that cannot be read."""
    lines = [json.dumps({"id": f"s{i}", **record}) for i, record in enumerate(records)]
    for i in range(9, RECORDS, 31):
        lines[i] = '{"id": "broken'
    for i in range(40, RECORDS, 37):
        lines[i] = lines[i].replace(f'"s{i}"', f'"s{i - 39}"')
    path.write_text("\n".join(lines) + "\n")


def job_of(path, verb, input, output, **settings):
    """A job in `path`; the output's name ends as the input's."""
    output = str(path / f"{output}{Path(input).suffix}")
    if verb == "classify":
        return ClassifyJob(str(path / "textcnn"), str(path / input), output, settings=Settings(**settings))
    return GenerateJob(str(path / "gpt2"), str(path / input), output, SAMPLED, settings=Settings(**settings))


def run(job):
    return (classify if isinstance(job, ClassifyJob) else generate)(job)


def expected(path, verb):
    return (path / f"expected.{verb}.jsonl").read_bytes()


def files(path):
    """What lies below a directory but for leases, with times."""
    return {one: one.stat().st_mtime_ns for one in path.rglob("*") if one.is_file() and one.name != "lease"}


def clear(job):
    shutil.rmtree(f"{job.output}.job", ignore_errors=True)
    Path(job.output).unlink(missing_ok=True)


def command(path, verb, output, *options):
    """The command line of a job in small shards."""
    model, sampling = {"classify": ("textcnn", ()), "generate": ("gpt2", ("--temperature", "1", "--max-tokens", "3"))}[
        verb
    ]
    given = ("-p", path / model, "-i", path / f"{verb}.jsonl", "-o", output)
    return [verb, *map(str, (*given, *sampling, "--shard-size", 1000, "--threads", "1", *options))]


def intact(job_output, wanted):
    """The output is whole and right, and nothing was left beside it."""
    assert Path(job_output).read_bytes() == wanted
    assert verify(job_output).intact
    assert not [one for one in Path(f"{job_output}.job").rglob("*") if one.name.endswith(".tmp")]


class Trapping(ClassifyTask):
    """A job whose kernel ends its process on a sentence that begins with the token ids of record 60."""

    def open(self, place):
        worker = super().open(place)
        with open(self.job.input) as file:
            poison = json.loads(file.readlines()[59])["tokens"]
        compute = worker._logits

        def trap(tokens):
            if poison in tokens.tolist():
                os.kill(os.getpid(), signal.SIGSEGV)
            return compute(tokens)

        worker._logits = trap
        return worker


class Cutting(ClassifyTask):
    """A job whose weights another program cuts short before the second batch, once per time that `cut` is absent."""

    def open(self, place):
        worker = super().open(place)
        compute, batches = worker._logits, []

        def cut(tokens):
            batches.append(len(tokens))
            if len(batches) == 2 and not os.path.exists(f"{self.job.model}/cut"):
                Path(self.job.model, "cut").touch()
                os.truncate(f"{self.job.model}/model.safetensors", mmap.PAGESIZE)
            return compute(tokens)

        worker._logits = cut
        return worker


POISON = "a sentence that no other line has"


class TrappingThere(ClassifyTask):
    """A job of texts whose kernel on a GPU fails its assertion on POISON."""

    def open(self, place):
        import torch

        worker = super().open(place)
        encoder = encoder_for(tokenizer_of(self.job.model), self.config)
        poison, compute = encoder.rows([POISON])[0].tolist(), worker._logits

        def trap(tokens):
            torch._assert_async(torch.tensor(poison not in tokens.tolist(), device="cuda"))
            return compute(tokens)

        worker._logits = trap
        return worker
