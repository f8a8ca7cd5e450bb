"""Many files as one input: the answers of their joined lines; errors name the file; changes are refused."""

import gzip
import json
import os
import random
from dataclasses import replace

import numpy as np
import pytest

from gpt2_models import save
from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.formats.inputs import open_text
from tilewright.formats.lines import read_lines
from tilewright.formats.many_files import list_files
from tilewright.generation.sampling import SamplingParams
from tilewright.runtime.jobs.cut import LineIndex, Lines, Shard
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.generate import GenerateJob, generate


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(folder, texts):
    """Files of these names and texts."""
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return str(folder)


def records(first, count, **more):
    return b"".join(json.dumps({"id": f"s{i}", "tokens": [i % 50, 1, 2, 3, 4, 5], **more}).encode() + b"\n"
                    for i in range(first, first + count))  # fmt: skip


@pytest.fixture
def texts():
    """Files of many sizes: one without a last line end, one empty, one with a mark, one compressed, one in a folder."""
    return {
        "a.jsonl": records(0, 1).rstrip(),
        "b.jsonl": b"",
        "c.jsonl": b"\xef\xbb\xbf\n" + records(1, 30) + b"\n\n" + records(31, 1),
        "d.jsonl.gz": records(32, 9),
        "sub/e.jsonl": records(41, 2),
    }


@pytest.mark.parametrize("quoted", [False, True])
def test_lines_of_random_files_at_every_size(tmp_path, quoted):
    """Each line belongs to one shard, in any order; its file and its number there are right."""
    draw = random.Random(3)
    for turn in range(25):
        folder, kind = tmp_path / str(turn), ".csv" if quoted else ".txt"
        head = 'x\n"' if quoted else ""
        files = {f"{i}{kind}": head + "".join(draw.choice("ab\n\n" + '"' * quoted) for _ in range(draw.randint(0, 30)))
                 for i in range(draw.randint(1, 6))}  # fmt: skip
        files[f"0{kind}"] = files[f"0{kind}"] or "x"
        source = list_files(write(folder, {name: text.encode() for name, text in files.items()})).measured()
        with open_text(source, "input") as file:
            wanted, places = list(read_lines(file)), {}
            for number, _, _ in wanted:
                places[number] = file.located(number)
            for name, text in files.items():
                if not quoted:
                    alone = [i for i, line in enumerate(text.split("\n"), 1) if line.strip()]
                    assert [line for place, line in places.values() if place == name] == alone
            for per_shard in {1, 2, 7, draw.randint(1, 99)}:
                cut = Lines(file.size, per_shard)
                fd = os.open(tmp_path / "index", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
                shards = [Shard(n, cut, LineIndex(fd, "", cut, "k" * 64)) for n in range(cut.shards)]
                found, order = {}, list(range(cut.shards))
                draw.shuffle(order)
                for n in order:
                    found[n] = []
                    for line in shards[n].lines(file):
                        found[n].append(line)
                        assert file.located(line[0]) == places[line[0]], (files, per_shard)
                os.close(fd)
                assert [line for n in sorted(found) for line in found[n]] == wanted, (files, per_shard)


@pytest.mark.parametrize("given", ["directory", "pattern", "list"])
def test_the_answers_of_the_joined_lines(tmp_path, model, texts, given):
    folder = write(tmp_path / "data", texts)
    names = sorted(texts)
    (tmp_path / "all.jsonl").write_bytes(b"".join(texts[name].removeprefix(b"\xef\xbb\xbf") + b"\n" for name in names))
    (tmp_path / "names.txt").write_text("".join(f"{folder}/{name}\n" for name in names))
    source = {"directory": folder, "pattern": f"{folder}/**/*.jsonl*", "list": f"@{tmp_path}/names.txt"}[given]
    classify(ClassifyJob(model, str(tmp_path / "all.jsonl"), str(tmp_path / "right.jsonl")))
    job = ClassifyJob(model, source, str(tmp_path / "out.jsonl"), settings=Settings(shard_size=300))
    report = classify(job)
    assert (report.records, report.errors) == (43, 0) and report.job["shards"] > 5
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "right.jsonl").read_bytes()
    assert verify(job.output).intact and classify(job).computed == 0


def test_errors_name_the_file_and_its_line(tmp_path, model):
    texts = {
        "a.jsonl": records(0, 3),
        "b.jsonl": b"\n" + records(3, 40) + records(1, 1) + b'{"id": "broken\n' + records(2, 1),
    }
    job = ClassifyJob(
        model, write(tmp_path / "data", texts), str(tmp_path / "out.jsonl"), settings=Settings(shard_size=500)
    )
    report = classify(job)
    found = [line["error"] for line in lines_of(tmp_path / "out.jsonl") if "error" in line]
    assert [(error["file"], error["line"], error["field"]) for error in found] == [
        ("b.jsonl", 42, "id"), ("b.jsonl", 43, ""), ("b.jsonl", 44, "id")]  # fmt: skip
    assert report.first_errors[0] == "b.jsonl, line 42, id: 's1' is also the id of an earlier record"


def test_records_without_ids_get_the_file_and_the_line(tmp_path):
    save(tmp_path / "gpt2")
    texts = {f"{name}.txt": b"the cat\n\nthe dog\n" for name in "ab"}
    job = GenerateJob(
        str(tmp_path / "gpt2"), write(tmp_path / "data", texts), str(tmp_path / "out.jsonl"),
        SamplingParams(temperature=1, max_tokens=3), settings=Settings(shard_size=10),
    )  # fmt: skip
    generate(job)
    found = lines_of(tmp_path / "out.jsonl")
    assert [line["id"] for line in found] == ["a.txt:1", "a.txt:3", "b.txt:1", "b.txt:3"]
    whole = tmp_path / "whole.jsonl"
    generate(GenerateJob(job.model, job.input, str(whole), job.params))
    assert whole.read_bytes() == (tmp_path / "out.jsonl").read_bytes(), "whatever the shards"


def test_tables(tmp_path, model):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "data").mkdir()
    for k in range(3):
        rows = [{"id": 10 * k + i, "tokens": [i, 1, 2, 3, 4, 5] if i != 2 else [1], "k": k} for i in range(5)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data" / f"{k}.parquet", row_group_size=2)
    job = ClassifyJob(model, str(tmp_path / "data"), str(tmp_path / "out.parquet"), keep=(("k", "k"),))
    assert classify(job).errors == 3
    found = pq.read_table(job.output).to_pylist()
    assert [(row["id"], row["k"]) for row in found] == [(10 * k + i, k) for k in range(3) for i in range(5)]
    errors = [row["error"] for row in found if row["error"]]
    assert [(error["file"], error["line"]) for error in errors] == [(f"{k}.parquet", 3) for k in range(3)]


def test_a_changed_list_is_another_job(tmp_path, model, texts):
    folder = write(tmp_path / "data", texts)
    job = ClassifyJob(model, folder, str(tmp_path / "out.jsonl"))
    classify(job)
    write(tmp_path / "data", {"z.jsonl": records(90, 1)})
    with pytest.raises(UsageError, match=r"begun with other settings or inputs: files was 5 and is 6"):
        classify(job)
    os.remove(tmp_path / "data" / "z.jsonl")
    assert classify(job).computed == 0
    (tmp_path / "data" / "a.jsonl").write_bytes(records(5, 1))
    with pytest.raises(
        UsageError, match=r"begun with other settings or inputs: (the size of the input|input\.files|input\.ctime) was"
    ):
        classify(job)


def test_a_file_that_changes_meanwhile_ends_the_job(tmp_path, model, texts, monkeypatch):
    from tilewright.runtime.verbs.classify.worker import ClassifyWorker

    folder = write(tmp_path / "data", texts)
    logits = ClassifyWorker._logits

    def changing(self, tokens):
        with open(f"{folder}/c.jsonl", "ab") as file:
            file.write(b"\n")
        return logits(self, tokens)

    monkeypatch.setattr(ClassifyWorker, "_logits", changing)
    with pytest.raises(InputError, match=r"c\.jsonl: an input was changed while the job ran"):
        classify(ClassifyJob(model, folder, str(tmp_path / "out.jsonl"), settings=Settings(shard_size=400)))
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("texts", "given", "error", "said"),
    [
        ({}, "", InputError, "the directory holds no files"),
        ({"a.jsonl": b"x", "b.txt": b"x"}, "", UsageError, r"the files are \.jsonl \(a\.jsonl\) and \.txt \(b\.txt\)"),
        ({"a.bin": bytes(24)}, "", UsageError, r"the files are \.bin; text or Parquet is wanted"),
        ({"a.jsonl": b"x", "notes.md": b"x"}, "", UsageError, r"notes\.md: the name of the input ends with \.md"),
        ({"a.jsonl": b"x"}, "/*.csv", InputError, "there are no files of this name"),
        ({"a.jsonl": b"", "b.jsonl": b""}, "", InputError, "the input is empty"),
        ({"a.csv": b"tokens\n", "b.csv": b"ids\n"}, "", InputError, r"b\.csv, line 1: has another header than a\.csv"),
        ({"a.txt": b"a\0b"}, "", (InputError, UsageError), "is not text|no tokenizer"),
    ],
)
def test_what_is_refused(tmp_path, model, texts, given, error, said):
    (tmp_path / "data").mkdir()
    folder = write(tmp_path / "data", texts)
    with pytest.raises(error, match=said):
        classify(ClassifyJob(model, folder + given, str(tmp_path / "out.jsonl")))


def test_lists(tmp_path, model):
    folder = write(tmp_path / "data", {"a.jsonl": records(0, 2)})
    (tmp_path / "names.txt").write_text(f"{folder}/a.jsonl\n\n{folder}/gone.jsonl\n")
    job = ClassifyJob(model, f"@{tmp_path}/names.txt", str(tmp_path / "out.jsonl"))
    with pytest.raises(InputError, match=r"gone\.jsonl, line 3 of .*names\.txt: no such input"):
        classify(job)
    (tmp_path / "names.txt").write_text(f"{folder}/a.jsonl\n{folder}/../data/a.jsonl\n")
    with pytest.raises(UsageError, match=r"line 2 of .*: is given twice, also as .*data/a\.jsonl"):
        classify(job)


def test_outputs_among_the_inputs_are_refused(tmp_path, model):
    folder = write(tmp_path / "data", {"a.jsonl": records(0, 2)})
    with pytest.raises(UsageError, match="the output is inside the input"):
        classify(ClassifyJob(model, folder, f"{folder}/out.jsonl"))
    with pytest.raises(UsageError, match="the output would overwrite an input"):
        classify(ClassifyJob(model, f"{folder}/*.jsonl", f"{folder}/a.jsonl"))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_of_parts(tmp_path, model, texts):
    """One file per shard, in order; a damaged one is made again; what others put there is not replaced."""
    source = write(tmp_path / "data", texts)
    one = ClassifyJob(model, source, str(tmp_path / "one.jsonl"))
    classify(one)
    job = replace(one, output=f"{tmp_path}/out/", settings=Settings(shard_size=400))
    report = classify(job)
    found = contents(tmp_path / "out")
    parts = [f"part-{i:05}.jsonl" for i in range(report.job["shards"])]
    assert sorted(found) == ["_SUCCESS", *parts] and found["_SUCCESS"] == b"" and len(parts) > 3
    assert b"".join(found[name] for name in parts) == (tmp_path / "one.jsonl").read_bytes()
    assert verify(job.output).intact and classify(job).computed == 0
    (tmp_path / "out" / "part-00001.jsonl").write_bytes(b"")
    assert not verify(job.output).intact
    assert classify(job).computed == 0 and contents(tmp_path / "out") == found
    (tmp_path / "out" / "notes").write_bytes(b"mine")
    with pytest.raises(ResourceError, match="holds other files than a job's"):
        classify(replace(job, settings=Settings(restart=True)))


def test_one_output_per_input(tmp_path, model, texts):
    del texts["sub/e.jsonl"]
    texts["c.jsonl"] += b'{"id": "broken\n'
    source = write(tmp_path / "data", texts)
    one = ClassifyJob(model, source, str(tmp_path / "one.jsonl"))
    classify(one)
    for size in (150, 100_000):
        job = replace(one, output=f"{tmp_path}/{size}/", per_input=True, settings=Settings(shard_size=size))
        assert classify(job).errors == 1 and verify(job.output).intact
        found = contents(tmp_path / str(size))
        names = ["a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl"]
        assert sorted(found) == ["_SUCCESS", *names] and found["b.jsonl"] == b""
        assert b"".join(found[name] for name in names) == (tmp_path / "one.jsonl").read_bytes()
        assert [found[name].count(b"\n") for name in names] == [1, 0, 32, 9]


def test_folders_of_tables_and_texts(tmp_path, model):
    pq = pytest.importorskip("pyarrow.parquet")
    texts = {"a.jsonl": records(0, 5, k=1), "b.jsonl": records(5, 2, k=2.5)}
    source = write(tmp_path / "data", texts)
    job = ClassifyJob(model, source, f"{tmp_path}/out.parquet/", keep=(("k", "k"),), per_input=True)
    classify(job)
    found = [pq.read_table(tmp_path / "out.parquet" / f"{name}.parquet") for name in "ab"]
    assert [table.column("k").to_pylist() for table in found] == [[1.0] * 5, [2.5] * 2]
    assert found[0].schema.equals(found[1].schema)
    save(tmp_path / "gpt2")
    (tmp_path / "in.txt").write_text("the cat\nthe dog\n")
    greedy = SamplingParams(temperature=0, max_tokens=2)
    out = f"{tmp_path}/out.txt/"
    generate(
        GenerateJob(str(tmp_path / "gpt2"), str(tmp_path / "in.txt"), out, greedy, settings=Settings(shard_size=8))
    )
    assert sorted(contents(tmp_path / "out.txt")) == ["_SUCCESS", "part-00000.txt", "part-00001.txt"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"per_input": True}, "--per-input needs an output that is a folder"),
        ({"per_input": True, "output": "out/"}, r"sub/e\.jsonl is in a directory of its own"),
        (
            {"per_input": True, "output": "out/", "more": {"d.jsonl": b""}, "without": "sub/e.jsonl"},
            "two inputs have the",
        ),
        ({"output": "out"}, r"no suffix; .*\. Choose one of these, or write .*/out/ for a folder of such files"),
        ({"output": "there"}, r"the output is a folder, and its name does not end with a slash\. Write .*/there/ for"),
        ({"output": "out/", "answers": "a.jsonl"}, "a folder cannot be compared with answers"),
        ({"output": "out/", "input": "in.bin"}, "a binary input has one output"),
    ],
)
def test_what_no_folder_can_be(tmp_path, model, texts, options, said):
    texts |= options.pop("more", {})
    texts.pop(options.pop("without", ""), None)
    source = write(tmp_path / "data", texts)
    (tmp_path / "there").mkdir()
    np.zeros((2, 6), "<i4").tofile(tmp_path / "in.bin")
    source = str(tmp_path / options.pop("input")) if "input" in options else source
    output = f"{tmp_path}/{options.pop('output', 'out.jsonl')}"
    with pytest.raises(UsageError, match=said):
        classify(ClassifyJob(model, source, output, **options))


@pytest.mark.long
def test_ten_thousand_files_are_one_job(tmp_path, model):
    """Of any sizes: shards split large ones and join small ones, on two workers."""
    rng, first = np.random.default_rng(4), 0
    (tmp_path / "data").mkdir()
    for i in range(10_000):
        count = int(rng.integers(0, 4)) if i % 2000 else 5000
        (tmp_path / "data" / f"{i:05}.jsonl").write_bytes(records(first, count))
        first += count
    job = ClassifyJob(model, str(tmp_path / "data"), str(tmp_path / "out.jsonl"), settings=Settings(workers=2))
    report = classify(job)
    assert (report.records, report.errors) == (first, 0) and report.job["shards"] < 100
    with open(tmp_path / "out.jsonl") as file:
        assert [json.loads(line)["id"] for line in file] == [f"s{i}" for i in range(first)]
