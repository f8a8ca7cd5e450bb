"""Files of a job's directory, of finished outputs and of the cache of kernels, as kinds of `mutant_kinds`.

A job goes on with the mutant of one of its files in place of what it had written: the output is right, or the job
refuses. Where a mutant's seals are computed again ("forged"), its content is the mutant's own, and all else holds.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zarr

from bert_models import saved
from decoder_models import FAMILIES, save_with_tokenizer
from gpt2_models import save
from mutating import Kind
from tilewright.errors import InputError, ResourceError
from tilewright.generation.sampling import SamplingParams
from tilewright.runtime.convert.models import init_dcgan, init_textcnn
from tilewright.runtime.jobs.directory import MANIFEST, REPORT, JobDirectory
from tilewright.runtime.jobs.finished import Report, digest_of
from tilewright.runtime.jobs.manifest import Manifest, encoded, seal
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.record import LENGTH_BYTES, Record, part_name
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.status import status
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.convolve import ConvolveJob, convolve
from tilewright.runtime.verbs.draw import DrawJob, draw
from tilewright.runtime.verbs.embed import EmbedJob, embed
from tilewright.runtime.verbs.generate import GenerateJob, generate
from tilewright.runtime.verbs.score import ScoreJob, score
from tilewright.simd import cache
from tilewright.simd.private_directory import PrivateDirectory

SHARD = 1  # the one whose file is a mutant, of three
ONE = Settings(shard_size=4)
LINES = Settings(shard_size=150)  # bytes: three shards


def _classify(output: str, **more: Any) -> None:
    classify(ClassifyJob("textcnn", "in.jsonl", output, settings=replace(LINES, **more)))


def _classify_keeping(output: str) -> None:
    classify(ClassifyJob("textcnn", "in.jsonl", output, settings=LINES, keep=(("note", "note"), ("id", "name"))))


def _classify_texts(output: str) -> None:
    classify(ClassifyJob("bert", "texts.jsonl", output, settings=LINES))


def _embed(output: str) -> None:
    embed(EmbedJob("bert", "texts.jsonl", output, settings=LINES))


def _embed_keeping(output: str) -> None:
    embed(EmbedJob("bert", "texts.jsonl", output, settings=LINES, keep=(("text", "said"), ("id", "name"))))


def _generate(output: str) -> None:
    sampled = SamplingParams(temperature=1, max_tokens=3)
    generate(GenerateJob(_decoder(output), "prompts.jsonl", output, sampled, settings=LINES))


def _score(output: str) -> None:
    score(ScoreJob(_decoder(output), "pairs.jsonl", output, settings=LINES))


def _decoder(output: str) -> str:
    """The model of a job whose output is named after it."""
    return next((family for family in FAMILIES if family in output), "gpt2")


def _convolve(output: str, **more: Any) -> None:
    given = "v.zarr" if output.endswith(".zarr") else "v.npy"
    convolve(ConvolveJob(given, "box:3", output, settings=replace(ONE, **more)))


def _draw(output: str, **more: Any) -> None:
    draw(DrawJob("dcgan", None, output, count=10, seed=3, settings=replace(ONE, **more)))


JOBS: dict[str, Callable[..., None]] = {
    **{f"classify.{end}": _classify for end in ("jsonl", "parquet")},
    "classify.kept.parquet": _classify_keeping,
    "classify.bert.jsonl": _classify_texts,
    "embed.npy": _embed,
    "embed.kept.parquet": _embed_keeping,
    **{f"generate.{end}": _generate for end in ("jsonl", "parquet", "opt.jsonl")},
    **{f"score.{end}": _score for end in ("jsonl", "parquet", "gpt_neox.jsonl")},
    **{f"convolve.{end}": _convolve for end in ("npy", "nii.gz", "zarr", "txt")},
    **{f"draw.{end}": _draw for end in ("npy", "txt", "png", "bmp")},
    "draw": _draw,
}
PICTURES = ("draw.png", "draw.bmp")


def inputs(output: str) -> None:
    """What the job of this output reads, in the directory at hand."""
    rng, decoder = np.random.default_rng(7), _decoder(output)
    if output.startswith(("embed", "classify.bert")):
        saved("bert", 0, Path("bert"))
        texts = [{"id": f"s{i}", "text": text} for i, text in enumerate(["good film", "", "bad", "not a good plot"])]
        texts[3]["id"] = "s0"  # in the second shard
        Path("texts.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, texts * 2)) + b"\n")
    elif output.startswith("classify"):
        init_textcnn("textcnn", 3, vocab_size=50, sequence_length=6, hidden_size=8, num_filters=5, kernel_sizes=(2,),
                     hidden_sizes=(7,))  # fmt: skip
        lines = [{"id": f"s{i}", "tokens": row} for i, row in enumerate(rng.integers(0, 50, (10, 6)).tolist())]
        for i, line in enumerate(lines):
            line["note"] = {"k": [i, None]}
        lines[3], lines[8] = {"id": 3}, lines[2]  # one without tokens, an id given twice
        Path("in.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, lines)) + b"\n")
    elif output.startswith("generate"):
        save_with_tokenizer(decoder, Path(decoder)) if decoder in FAMILIES else save(Path(decoder))
        prompts = [{"id": f"p{i}", "prompt": f"the cat sat on {i}"} for i in range(9)]
        Path("prompts.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, prompts)) + b"\n")
    elif output.startswith("score"):
        save_with_tokenizer(decoder, Path(decoder)) if decoder in FAMILIES else save(Path(decoder))
        pairs = [{"id": f"p{i}", "context": "the cat", "continuation": f" sat {i}"} for i in range(7)]
        Path("pairs.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, pairs)) + b"\n")
    elif output.startswith("convolve"):
        values = rng.standard_normal((12, 9, 8)).astype(np.float32)
        np.save("v.npy", values)
        zarr.create_array("v.zarr", shape=values.shape, dtype="f4", chunks=(4, 4, 4))[...] = values
    else:
        init_dcgan("dcgan", 3, z_size=3, size=2, channels=(4, 3), kernel=4)
        Path(output).mkdir() if "." not in output else None


@dataclass
class Begun:
    """A job all of whose shards are there, but not its output; kept: a copy of its directory. right: the output's
    digest."""

    output: str
    right: tuple[int, str]
    kept: str

    def again(self, name: str, data: bytes) -> bytes:
        """What a run makes with `data` as the file `name` of the job's directory. Raises InputError."""
        self.put_back()
        Path(f"{self.output}.job", name).write_bytes(data)
        for look in (status, verify):
            with suppress(InputError, ResourceError):
                look(self.output)
        try:
            JOBS[self.output](self.output)
        except ResourceError as error:
            raise InputError(str(error)) from error
        return repr(digest_of(self.output, lambda: None)).encode()

    def put_back(self) -> None:
        remove(self.output)
        shutil.rmtree(f"{self.output}.job", ignore_errors=True)
        shutil.copytree(self.kept, f"{self.output}.job")
        if self.output == "draw":
            os.mkdir(self.output)


def remove(path: str) -> None:
    shutil.rmtree(path) if os.path.isdir(path) else Path(path).unlink(missing_ok=True)


def begun_job(folder: Path, output: str) -> Begun:
    inputs(output)
    JOBS[output](output)
    right, job, kept = digest_of(output, lambda: None), Path(f"{output}.job"), f"{output}.kept"
    with JobDirectory(output) as directory:
        in_place = directory.notes(SHARD).startswith(b"tilewright pieces")
    os.rename(job / REPORT, "report.json")
    if in_place:
        os.rename(output, job / "output")  # as it is before the merge
    shutil.copytree(job, kept)
    return Begun(output, right, kept)


def _shard(output: str) -> Callable[[Path], Kind]:
    def kind(folder: Path) -> Kind:
        begun = begun_job(folder, output)
        name = f"shards/{part_name(SHARD)}"
        seeds = [Path(begun.kept, "shards", part_name(number)).read_bytes() for number in (SHARD, 0)]
        return Kind(seeds, lambda data: begun.again(name, data), known={repr(begun.right).encode()}, refuses=False)

    return kind


def _forged_record(output: str) -> Callable[[Path], Kind]:
    """The record of a shard, sealed anew: its output and notes are as they were."""

    def kind(folder: Path) -> Kind:
        begun = begun_job(folder, output)
        name = f"shards/{part_name(SHARD)}"
        part = Path(begun.kept, name).read_bytes()
        body, record = _parted(part)

        def read(data: bytes) -> bytes:
            line = sealed(data, Record)
            return begun.again(name, body + line + b"%08x\n" % (len(line) % 2**32))

        return Kind([record], read, text=True, known={repr(begun.right).encode()}, refuses=False)

    return kind


def _forged_content(output: str) -> Callable[[Path], Kind]:
    """The output and the notes of a shard, their hashes and seal computed again: what they say is believed."""

    def kind(folder: Path) -> Kind:
        begun = begun_job(folder, output)
        name = f"shards/{part_name(SHARD)}"
        body, line = _parted(Path(begun.kept, name).read_bytes())
        record = msgspec.json.decode(line, type=Record)

        def read(data: bytes) -> bytes:
            size = min(record.size, len(data))
            notes = data[size:]
            forged = msgspec.structs.replace(
                record, size=size, sha256=hashlib.sha256(data[:size]).hexdigest(), notes_size=len(notes),
                notes_sha256=hashlib.sha256(notes).hexdigest() if notes else "",
            )  # fmt: skip
            return begun.again(name, data + seal(forged).trailer)

        return Kind([body], read, text=b"{" in body, refuses=False)

    return kind


def _forged(output: str, name: str, type_: type) -> Callable[[Path], Kind]:
    """The manifest or the report, sealed anew."""

    def kind(folder: Path) -> Kind:
        begun = begun_job(folder, output)
        seed = Path("report.json").read_bytes() if name == REPORT else Path(begun.kept, name).read_bytes()
        return Kind([seed], lambda data: begun.again(name, sealed(data, type_)), text=True,
                    known={repr(begun.right).encode()}, refuses=False)  # fmt: skip

    return kind


def _parted(part: bytes) -> tuple[bytes, bytes]:
    """(output and notes, record) of a shard's file."""
    begin = len(part) - LENGTH_BYTES - int(part[-LENGTH_BYTES:], 16)
    return part[:begin], part[begin:-LENGTH_BYTES]


def sealed(data: bytes, type_: type) -> bytes:
    """JSON with the seal that fits; as it is where it is none of this type."""
    try:
        return encoded(seal(msgspec.json.decode(data, type=type_)))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return data


def _picture(output: str) -> Callable[[Path], Kind]:
    """A finished picture: a changed one is found, and the next run makes it again."""

    def kind(folder: Path) -> Kind:
        begun_job(folder, output)
        shutil.rmtree(f"{output}.job")
        JOBS[output](output)
        right = Path(output).read_bytes()

        def read(data: bytes) -> bytes:
            Path(output).write_bytes(data)
            if verify(output).intact:
                return data
            JOBS[output](output)
            return Path(output).read_bytes()

        return Kind([right], read, known={right}, refuses=False)

    return kind


def _kernel(folder: Path, *, forged: bool) -> Kind:
    """A compiled kernel on disk; forged: with a hash that fits, which says nothing about who wrote it."""
    private = PrivateDirectory(folder / "cache")
    stored = cache.Stored("a.b", "void(i8)", "lib", "u", "m", "e", ["t"], 3, ["o"], ["m"], b"\x7fELF" * 9)
    payload = msgspec.msgpack.encode(stored)

    def hashed(payload: bytes) -> bytes:
        return cache.MAGIC + hashlib.sha256(payload).digest() + payload

    def read(data: bytes) -> bytes:
        private.write("a.kernel", hashed(data) if forged else data)
        content = private.read("a.kernel", cache.MAX_BYTES)
        found = None if content is None else cache._decoded(content, cache.Stored)
        if found is None:
            raise InputError("is compiled again")
        return msgspec.msgpack.encode(found)

    return Kind([payload if forged else hashed(payload)], read, known=None if forged else {payload})


JOB_KINDS: dict[str, Callable[[Path], Kind]] = {
    **{f"job shard {output}": _shard(output) for output in JOBS},
    **{f"job record forged {output}": _forged_record(output) for output in JOBS},
    **{f"job content forged {output}": _forged_content(output) for output in JOBS},
    **{f"job manifest forged {output}": _forged(output, MANIFEST, Manifest) for output in JOBS},
    **{f"job report forged {output}": _forged(output, REPORT, Report) for output in JOBS},
    **{f"job picture {output}": _picture(output) for output in PICTURES},
    "kernel": lambda folder: _kernel(folder, forged=False),
    "kernel forged": lambda folder: _kernel(folder, forged=True),
}
