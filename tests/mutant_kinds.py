"""Every kind of file that the product parses: small whole files of it, and the product's own reader.

`KINDS[name](folder)` gives a Kind. A reader returns bytes that stand for all that it read.
"""

import gzip
import hashlib
import io
import json
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import tokenizers
from backports import zstd

from bert_models import saved
from decoder_models import FAMILIES, save_with_tokenizer
from mutant_job_state import STATE_KINDS
from mutant_jobs import JOB_KINDS
from mutant_volumes import VOLUME_KINDS
from mutating import Kind, at
from sentence_models import saved_sentences
from tilewright.bench import results
from tilewright.bench.report.timeline import Run, Window
from tilewright.bench.report.timelines import read_timeline, save_timeline
from tilewright.errors import InputError
from tilewright.formats import models, parquet, sharded, token_table
from tilewright.formats.embedding_lines import open_texts
from tilewright.formats.embedding_modules import embedding_modules
from tilewright.formats.files import InputFile
from tilewright.formats.prompts import open_prompts
from tilewright.formats.record_fields import PLAIN, RecordFields
from tilewright.formats.records import Record
from tilewright.formats.safetensors import map_tensors, read_header, write_tensors
from tilewright.formats.scored import open_scored
from tilewright.formats.sentence_encoder import RaggedEncoder
from tilewright.formats.sentences import open_sentences
from tilewright.formats.tables import open_table
from tilewright.formats.tokenizer import Tokenizer
from tilewright.formats.traces import Lane, Process, read_trace
from tilewright.formats.validate import validate
from tilewright.generation.scored_texts import Pieces, ScoringLimits, pieces_of_tokens
from tilewright.runtime.jobs.manifest import Damaged, Sealed, encoded, seal, unseal
from tilewright.runtime.load import config_of, tokenizer_of

RNG = np.random.default_rng(5)
EMBEDDED = (
    b'{"id": "a", "text": "good film"}\n{"id": "b", "tokens": [2, 5, 3]}\n{"id": "c", "text": ""}\n',
    b'{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": ["a", "bad"], "dimensions": 3}}\n'
    b'{"custom_id": "b", "body": {"input": [[2, 5]], "encoding_format": "base64", "model": "m"}}\n',
)


def _said(*values: object) -> bytes:
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).digest()


def _kept(records: list[Record]) -> list[object]:
    """Records, with the text of their kept fields."""
    return [(replace(record, kept={}), {name: bytes(raw) for name, raw in record.kept.items() if raw is not None})
            for record in records]  # fmt: skip


def _table(name: str) -> Callable[[Path], Kind]:
    def kind(folder: Path) -> Kind:
        path, values = folder / name, RNG.random((5, 4)).astype(np.float32)
        if name.endswith(".npy"):
            np.save(path, values)
        else:
            path.write_text("5\n" + "\n".join(" ".join(f"{x:.4f}" for x in row) for row in values))

        def read() -> bytes:
            with open_table(path, shape=(4,)) as table:
                return b"".join(rows.values.tobytes() for rows in table.batches(2))

        return Kind([path.read_bytes()], at(path, read), text=name.endswith(".txt"))

    return kind


def _records(name: str, *seeds: bytes, prompts: bool) -> Callable[[Path], Kind]:
    def kind(folder: Path) -> Kind:
        path = folder / name

        def read() -> bytes:
            if prompts:
                reader = open_prompts(path, encode=lambda text: list(text.encode())[:40], vocabulary=256, max_length=64)
            else:
                reader = open_sentences(path, encoder=None, length=4, vocabulary=99)
            with closing(reader):
                return _said([repr(batch) for batch in reader.batches(2)])

        return Kind(
            list(seeds),
            at(path, read),
            text=name.endswith((".jsonl", ".txt", ".csv")),
            refuses=not name.endswith(".txt"),
        )

    return kind


PROMPTS = (
    b'{"id": 7, "prompt": "To be", "max_tokens": 3, "temperature": 0.5, "seed": 1}\n'
    b'{"id": 8, "prompt_token_ids": [1, 2]}\n',
    b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "x", "n": 2}}\n',
    b'\xef\xbb\xbf{"prompt": "a\\u00e9"}\r\n\r\n{"prompt": "b", "stop": ["c"], "logprobs": 1, "top_p": 0.9}',
)
PAIRS = (
    b'{"id": 7, "context": "To be", "continuation": " or"}\n{"id": 8, "text": "not"}\n',
    b'{"prompt_token_ids": [1, 2], "continuation_token_ids": [3]}\r\n\r\n{"tokens": [4, 5]}\n',
)
TOKENS = (b'{"id": 1, "tokens": [1, 2, 3, 4]}\n{"id": "b", "tokens": [4, 5, 6, 7]}\n', b'{"tokens": [1, 2, 3, 98]}\n')
IDS = np.arange(32, dtype="<i4").tobytes()


NAMED = RecordFields("review", (("note", "note"), ("id", "name")))
OF_NAMED = (
    b'{"id": 7, "review": "To be", "note": {"a": [1.50, null]}, "text": 3}\n{"id": 8, "review": [4, 5]}\n',
    b'{"review": "not", "custom_id": 1, "body": {}, "note": "n"}\r\n\r\n{"review": "or", "note": 1e400}\n',
)


def _pairs(fields: RecordFields, *seeds: bytes) -> Callable[[Path], Kind]:
    def kind(folder: Path) -> Kind:
        path, limits = folder / "in.jsonl", ScoringLimits(64, 0, False)

        def prepare(*given: Any) -> Pieces:
            return pieces_of_tokens(*given, limits, lambda text: list(text.encode())[:40])

        def read() -> bytes:
            with closing(open_scored(path, prepare=prepare, vocabulary=256, fields=fields)) as reader:
                batches = list(reader.batches(2))
            tokens = [one.tokens.tolist() for b in batches for c in b.contents if c is not None for one in c.wanted]
            return _said([_kept(batch.records) for batch in batches], tokens)

        return Kind(list(seeds), at(path, read), text=True)

    return kind


def _parquet(folder: Path) -> Kind:
    path, seeds = folder / "in.parquet", []
    for codec in ("snappy", "zstd", "gzip", "none"):
        table = pyarrow.table({"id": [1, 2, 3], "prompt": ["a", "bc", None], "prompt_token_ids": [None, None, [1, 2]]})
        stream = io.BytesIO()
        pyarrow.parquet.write_table(table, stream, compression=codec, row_group_size=2)
        seeds.append(stream.getvalue())

    def read() -> bytes:
        with InputFile(path, "input") as file:
            return _said(parquet.has_ids(file), list(parquet.all_rows(file, None)))

    return Kind(seeds, at(path, read))


def _safetensors(folder: Path) -> Kind:
    path = folder / "model.safetensors"
    write_tensors(path, [("a", (2, 3), [np.ones((2, 3), np.float32)]), ("b.c", (4,), [np.zeros(4, np.float32)])])

    def read() -> bytes:
        with InputFile(path, "weights") as file:
            arrays = map_tensors(file, read_header(file))
            return _said(sorted((name, array.shape, array.tobytes()) for name, array in arrays.items()))

    return Kind([path.read_bytes()], at(path, read))


def _index(folder: Path) -> Kind:
    for name in ("a", "b"):
        write_tensors(folder / f"{name}.safetensors", [(name, (3,), [np.ones(3, np.float32)])])
    seed = json.dumps({"metadata": {}, "weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}).encode()
    read = lambda: _said(sorted(sharded.map_directory(folder)))  # noqa: E731
    return Kind([seed], at(folder / sharded.INDEX, read), text=True)


def _config(folder: Path) -> Kind:
    seed = {
        "model_type": "gpt2",
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 8,
        "eos_token_id": [1, 2],
        "tie": True,
        "x": 1e-5,
    }
    read = lambda: _said(models.read_config(folder), models.eos_token_ids(folder))  # noqa: E731
    return Kind([json.dumps(seed).encode()], at(folder / models.CONFIG, read), text=True)


def _modules(name: str) -> Callable[[Path], Kind]:
    """A file of a sentence-transformers directory."""

    def kind(folder: Path) -> Kind:
        saved_sentences("bert", 5, folder / "m", poolings=["mean"], default_prompt_name="query")
        path, width = folder / "m" / name, json.loads((folder / "m" / "config.json").read_text())["hidden_size"]
        return Kind([path.read_bytes()], at(path, lambda: _said(embedding_modules(folder / "m", width))), text=True)

    return kind


def _texts(fields: RecordFields, *seeds: bytes) -> Callable[[Path], Kind]:
    def kind(folder: Path) -> Kind:
        saved("bert", 0, folder / "m")
        encoder = RaggedEncoder(Tokenizer(folder / "m" / "tokenizer.json"), length=70, vocabulary=97)
        options = {"encoder": encoder, "vocabulary": 97, "size": 9, "fields": fields}

        def read() -> bytes:
            with closing(open_texts(folder / "in.jsonl", **options)) as reader:
                batches = reader.batches(2)
                return _said([(_kept(batch.records), batch.requests, batch.tokens.tolist()) for batch in batches])

        return Kind(list(seeds), at(folder / "in.jsonl", read), text=True, refuses=False)

    return kind


def _configuration(family: str) -> Callable[[Path], Kind]:
    """config.json of a decoder or an encoder, with the shapes of the tensors that it asks for."""

    def kind(folder: Path) -> Kind:
        if family in FAMILIES:
            save_with_tokenizer(family, folder / "m")
        else:
            saved(family, 0, folder / "m")

        def read() -> bytes:
            config = config_of(folder / "m")
            return _said(config, sorted(config.tensor_shapes().items()))

        path = folder / "m" / "config.json"
        return Kind([path.read_bytes()], at(path, read), text=True)

    return kind


WORDS = "".join(f"{word}\n" for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "##ly")).encode()
OLDER = {  # files of tokenizers that have no tokenizer.json, by the model's family
    "bert": {"vocab.txt": WORDS, "tokenizer_config.json": b'{"do_lower_case": false, "model_max_length": 9}'},
    "opt": {"vocab.json": b'{"<pad>": 0, "a": 1, "b": 2, "ab": 3, "</s>": 4}', "merges.txt": b"#version: 0.2\na b\n",
            "special_tokens_map.json": b'{"bos_token": "</s>", "eos_token": {"content": "</s>"}}'},
}  # fmt: skip


def _older_tokenizer(family: str, name: str) -> Callable[[Path], Kind]:
    """One of these files; the others are whole."""

    def kind(folder: Path) -> Kind:
        for file, content in OLDER[family].items():
            (folder / file).write_bytes(content)
        (folder / "config.json").write_text(json.dumps({"model_type": family}))

        def read() -> bytes:
            tokenizer = tokenizer_of(folder)
            assert tokenizer is not None
            return _said(tokenizer.encode("ab a goodly b"), tokenizer.truncation)

        return Kind([OLDER[family][name]], at(folder / name, read), text=True)

    return kind


def _tokenizer(folder: Path) -> Kind:
    path = folder / "tokenizer.json"
    made = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return Kind([made.to_str().encode()], at(path, lambda: _said(Tokenizer(path).encode("ab a b"))), text=True)


def _results(folder: Path) -> Kind:
    row = results.Row("matmul", "cpu.x", "1x2", "float32", 1, 5, 0.5, 0.4, 0.6, 3, gflops=1.5, peer="MKL", label="a")
    results.save(folder, "here", [row])
    path = folder / "here" / "matmul.csv"
    return Kind([path.read_bytes()], at(path, lambda: _said(results.read(folder))), text=True)


def _trace(folder: Path) -> Kind:
    path, event = folder / "trace.json", {"pid": 1, "tid": 2}
    events = [
        {"ph": "M", "name": "process_name", **event, "args": {"name": "w", "worker": 0, "device": "GPU 0"}},
        {"ph": "M", "name": "thread_name", **event, "args": {"name": "compute"}},
        {"ph": "X", "name": "shard 0", **event, "ts": 1.5, "dur": 2e3, "args": {"records": 7}},
    ]
    seed = json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode()
    return Kind([seed], at(path, lambda: _said(read_trace(path))), text=True)


def _timeline(folder: Path) -> Kind:
    lanes = {0: Lane("shard", 0, [(0.0, 9.5)]), 1: Lane("compute", 3, [(1.0, 2.0), (4.0, 8.25)])}
    runs = [
        Run(
            "a.json",
            [
                Process(None, "", 0, {0: Lane("plan", 7, [(0.0, 1.0)])}),
                Process(0, "GPU 0", 7, lanes, "here", "1a2b", "2026-11-21"),
            ],
        )
    ]
    path = save_timeline(folder, "two", runs, Window(0.0, 10.0))
    return Kind([path.read_bytes()], at(path, lambda: _said(read_timeline(path))), text=True)


def _token_table(folder: Path) -> Kind:
    path, rows = folder / "table", np.arange(6, dtype=np.int32).reshape(2, 3) % 4
    slices = [RNG.random((4, 5)).astype(np.float32) for _ in range(2)]
    token_table.write_table(path, "mine", rows, slices)

    def read() -> bytes:
        row_of, values = np.zeros((2, 3), np.int32), np.zeros((2, 8, 5), np.float32)
        count = token_table.read_table(path, "mine", row_of, values)
        if count is None:
            raise InputError("is of other weights")
        return _said(count, row_of.tobytes(), values.tobytes())

    return Kind([path.read_bytes()], at(path, read), sealed=True)


class Sample(Sealed, frozen=True):
    """Stands for what a job seals: a manifest, the record of a shard."""

    numbers: list[int]
    words: dict[str, str | int | None]


def _sealed(folder: Path) -> Kind:
    content = seal(Sample(numbers=[1, 2, 3], words={"seed": 4, "model": "x", "none": None}))

    def read(data: bytes) -> bytes:
        try:
            return encoded(unseal(data, Sample))
        except Damaged as error:
            raise InputError("damaged") from error

    return Kind([encoded(content)], read, text=True, sealed=True)


def _validated(name: str, seed: bytes) -> Callable[[Path], Kind]:
    def kind(folder: Path) -> Kind:
        (folder / f"right{name}").write_bytes(seed)
        path = folder / f"out{name}"
        read = lambda: _said(validate(path, folder / f"right{name}"))  # noqa: E731
        return Kind([seed], at(path, read), text=name == ".jsonl")

    return kind


LABELS = (
    b'{"id": 1, "label": "a", "score": 0.5, "logits": [0.25, -1.5]}\n{"id": 2, "error": {"line": 2, "message": "b"}}\n'
)
KINDS: dict[str, Callable[[Path], Kind]] = {
    **VOLUME_KINDS,
    "npy rows": _table("rows.npy"),
    "text rows": _table("rows.txt"),
    "jsonl prompts": _records("in.jsonl", *PROMPTS, prompts=True),
    "gzip prompts": _records("in.jsonl.gz", *(gzip.compress(text, mtime=0) for text in PROMPTS), prompts=True),
    "zstd prompts": _records("in.jsonl.zst", *map(zstd.compress, PROMPTS), prompts=True),
    "csv prompts": _records("in.csv", b'id,prompt,n,stop\n1,"a ""b""\nc",2,"[""x""]"\n2,d,,\r\n', prompts=True),
    "csv tokens": _records("in.csv", b'tokens,x\n"[1, 2, 3, 4]",\n"[5, 6, 7, 8]","\n"\n', prompts=False),
    "jsonl pairs": _pairs(PLAIN, *PAIRS),
    "jsonl named pairs": _pairs(NAMED, *OF_NAMED),
    "text prompts": _records("in.txt", b"To be\nor not\r\n\n\xc3\xa9", prompts=True),
    "binary prompts": _records("in.bin", IDS, prompts=True),
    "jsonl tokens": _records("in.jsonl", *TOKENS, prompts=False),
    "binary tokens": _records("in.bin", IDS, prompts=False),
    "parquet": _parquet,
    "safetensors": _safetensors,
    "safetensors index": _index,
    "config.json": _config,
    "tokenizer.json": _tokenizer,
    "modules.json": _modules("modules.json"),
    "pooling": _modules("1_Pooling/config.json"),
    "dense layer": _modules("2_Dense/config.json"),
    "prompts": _modules("config_sentence_transformers.json"),
    "jsonl texts": _texts(PLAIN, *EMBEDDED),
    "jsonl named texts": _texts(NAMED, *OF_NAMED),
    **{f"config.json of {family}": _configuration(family) for family in (*FAMILIES, "bert", "roberta", "distilbert")},
    **{f"{name} of {family}": _older_tokenizer(family, name) for family in OLDER for name in OLDER[family]},
    "results csv": _results,
    "trace": _trace,
    "saved timeline": _timeline,
    "token table": _token_table,
    "sealed json": _sealed,
    "labels": _validated(".jsonl", LABELS),
    "logits": _validated(".bin", struct.pack("<8f", *range(8))),
    **JOB_KINDS,
    **STATE_KINDS,
}
