"""A file's name says what it holds. Numbers are read from, and written to, a .bin file alone: text is never taken for
them."""

import numpy as np
import pytest

from tilewright.errors import UsageError
from tilewright.formats.images import kind_of
from tilewright.formats.names import ADVICE, check_records_name, check_suffix
from tilewright.formats.prompts import open_prompts
from tilewright.formats.sentences import open_sentences
from tilewright.formats.tables import open_table
from tilewright.formats.validate import validate
from tilewright.runtime.convert.models import init_gpt2
from tilewright.runtime.verbs.classify import ClassifyJob
from tilewright.runtime.verbs.classify.task import task_of as classify_task
from tilewright.runtime.verbs.generate import GenerateJob
from tilewright.runtime.verbs.generate.task import task_of as generate_task

WRONG = [f"in{ending}" for ending in ADVICE if ending not in (".csv", ".tsv")] + [
    "in.parquet.gz",
    "in.bin.zst",
    "in.jsonl.bz2",
    "in.JSONL",
    "in.BIN",
    "in.dat",
    "in",
    "in.",
]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", WRONG)
def test_readers_refuse_other_names(tmp_path, name):
    (tmp_path / name).write_bytes(np.zeros(64, "<i4").tobytes())
    readers = [
        lambda: open_prompts(name, encode=None, vocabulary=9, max_length=99),
        lambda: open_sentences(name, encoder=None, length=16, vocabulary=9),
        lambda: validate(name, name),
        lambda: check_suffix(name, "input") if name != "in.npy" else check_suffix("in.csv", "input"),
        lambda: open_table(name, shape=(4,)) if name != "in.npy" else open_table("in.csv", shape=(4,)),
        lambda: kind_of(name) if name != "in.npy" else kind_of("in.csv"),
    ]
    for read in readers:
        with pytest.raises(UsageError) as caught:
            read()
        assert caught.value.remedy and caught.value.path.startswith("in")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("a.psv", "save it as .parquet"),
        ("a.json", "jq -c"),
        ("a.jsonl.bz2", "unpack it first"),
        ("a.parquet.gz", "unpack it first"),
        ("a.ndjson", "rename it to .jsonl"),
        ("a.JSONL", "rename it to .jsonl"),
        ("a.md", "as .txt"),
        ("a.npy", "astype"),
        ("a.what", "choose one of these"),
    ],
)
def test_what_to_do(tmp_path, name, remedy):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UsageError, match=f"{name}: the name of the input ends with .*raw 32-bit numbers") as caught:
        check_records_name(name, "input")
    assert remedy in caught.value.remedy


def test_jobs_refuse_names_before_the_work(tmp_path):
    init_gpt2("model", 1, vocab_size=20, n_positions=64, n_embd=8, n_layer=1, n_head=1)
    np.zeros((4, 16), "<i4").tofile("in.bin")
    for name in ("in.psv", "in.json", "in.jsonl.bz2", "in.dat"):
        (tmp_path / name).write_bytes((tmp_path / "in.bin").read_bytes())
        for task_of, job in ((generate_task, GenerateJob), (classify_task, ClassifyJob)):
            with pytest.raises(UsageError, match="the name of the input ends with"):
                task_of(job(model="model", input=name, output="out.bin"))
    for name in ("out.csv", "out.json", "out.npy", "out"):
        for task_of, job in ((generate_task, GenerateJob), (classify_task, ClassifyJob)):
            with pytest.raises(UsageError, match="the name of the output"):
                task_of(job(model="model", input="in.bin", output=name))
    with pytest.raises(UsageError, match="binary by its name, and the output is not"):
        classify_task(ClassifyJob(model="model", input="in.bin", output="out.txt"))
    (tmp_path / "answers.csv").write_bytes(b"")
    with pytest.raises(UsageError, match=r"the name of the answers ends with \.csv"):
        generate_task(GenerateJob(model="model", input="in.bin", output="out.bin", answers="answers.csv"))
