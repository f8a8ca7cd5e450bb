"""`classify` and `generate` as jobs: cut, damaged, changed, run again - the same bytes, or the field that differs."""

import errno
import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.errors import ResourceError, TilewrightError, UsageError
from tilewright.generation.sampling import SamplingParams
from tilewright.runtime.jobs import ids
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.status import status
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.generate import GenerateJob, generate
from verb_jobs import ERRORS, RECORDS, SAMPLED, VERBS, clear, expected, files, job_of, run


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("size", [700, 2500, 9000])
def test_shards_change_no_bits(verbs, verb, size):
    """Bad lines, and ids given twice in one shard or in two, are what they are without shards."""
    job = job_of(verbs, verb, f"{verb}.jsonl", "cut", shard_size=size)
    report = run(job)
    assert Path(job.output).read_bytes() == expected(verbs, verb)
    assert (report.records, report.errors, report.exit_code) == (RECORDS, ERRORS, 0) and report.job["shards"] > 1
    assert [error.partition(":")[0] for error in report.first_errors[:2]] == ["line 10", "line 41"]
    assert verify(job.output).intact and status(job.output).errors == ERRORS
    clear(job)


def test_ids_of_other_forms(verbs, tmp_path):
    """OpenAI's lines, and an id that a bad line has given before."""
    body = {"prompt": "the cat", "max_tokens": 2, "temperature": 0}
    line = {"method": "POST", "url": "/v1/completions", "body": body}
    ids = ["a", "b", "a", "c", "b", "a"]
    lines = [{"custom_id": one, **line} for one in ids]
    lines[1]["body"] = body | {"temperature": 7}
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    whole, cut = (
        GenerateJob(str(verbs / "gpt2"), str(tmp_path / "in.jsonl"), str(tmp_path / f"{size}.jsonl"), SAMPLED,
                    settings=Settings(shard_size=size))
        for size in (10_000, 100)
    )  # fmt: skip
    assert generate(whole).errors == generate(cut).errors == 4
    assert Path(whole.output).read_bytes() == Path(cut.output).read_bytes()
    assert "'b' is also the id of an earlier record" in Path(cut.output).read_text()


def test_ids_of_a_text_output(verbs, tmp_path):
    """Nothing in it says so, but a line stays empty; and no record has two lines."""
    lines = [{"id": "abcab"[i], "prompt": "the cat"} for i in range(5)]
    lines[2] |= {"n": 2, "temperature": 1}
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    for size in (10_000, 40):
        job = GenerateJob(str(verbs / "gpt2"), str(tmp_path / "in.jsonl"), str(tmp_path / f"{size}.txt"),
                          SamplingParams(temperature=0, max_tokens=4), settings=Settings(shard_size=size))  # fmt: skip
        report = generate(job)
        found = Path(job.output).read_text().split("\n")
        assert report.errors == 3 and len(found) == 6 and found[0] == found[1] != ""
        assert found[2:] == ["", "", "", ""]
        assert report.first_errors[0] == "line 3, n: is 2; a text output holds one completion per prompt"
        assert report.first_errors[1:] == [
            f"line {i}, id: '{'ab'[i - 4]}' is also the id of an earlier record" for i in (4, 5)
        ]


@pytest.mark.parametrize("verb", VERBS)
def test_a_finished_job_does_nothing(verbs, verb):
    job = job_of(verbs, verb, f"{verb}.jsonl", "again", shard_size=2000)
    run(job)
    before = files(verbs)
    report = run(job_of(verbs, verb, f"{verb}.jsonl", "again", shard_size=500, max_errors=ERRORS))
    assert (report.computed, report.records, report.errors) == (0, RECORDS, ERRORS) and files(verbs) == before
    Path(job.output).unlink()
    assert run(job).computed == 0 and Path(job.output).read_bytes() == expected(verbs, verb)
    with pytest.raises(TilewrightError, match=r"13 of the first 240 records are bad and 12 are allowed; .* line 10"):
        run(job_of(verbs, verb, f"{verb}.jsonl", "again", max_errors=12))
    clear(job)


@pytest.mark.parametrize("verb", VERBS)
def test_a_damaged_shard_alone_is_made_again(verbs, verb):
    job = job_of(verbs, verb, f"{verb}.jsonl", "damaged", shard_size=2000)
    shards = run(job).job["shards"]
    with JobDirectory(job.output) as directory:
        behind = directory.record(2).size
    for at in (10, -10, behind + 3):  # in the output, in the record, in the ids behind the output
        part = Path(f"{job.output}.job/shards/00002.part")
        raw = bytearray(part.read_bytes())
        raw[at] ^= 4
        part.write_bytes(raw)
        assert [one.partition(":")[0] for one in verify(job.output).damaged] == ["shard 2"]
        assert not verify(job.output).intact
        report = run(job)
        assert report.job["computed"] == 1 < shards and verify(job.output).intact
        assert Path(job.output).read_bytes() == expected(verbs, verb)
    clear(job)


@pytest.mark.parametrize("verb", VERBS)
def test_a_shard_that_is_committed_again_is_whole_at_all_times(verbs, monkeypatch, verb):
    """With the errors of ids that were given before: whichever rename fails, nothing is damaged or computed again."""
    job, commit, replace = job_of(verbs, verb, f"{verb}.jsonl", "again", shard_size=2000), ids._commit, os.replace
    renames, nth, failed = [0], 0, True

    def counted(*names, **options):
        renames[0] += 1
        if renames[0] == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(*names, **options)

    def committed(*given):
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", counted)
            return commit(*given)

    while failed:
        renames[0], nth, failed = 0, nth + 1, False
        with monkeypatch.context() as patch:
            patch.setattr(ids, "_commit", committed)
            try:
                run(job)
            except ResourceError:
                failed = True
        found = verify(job.output)
        assert not found.damaged and found.finished != failed
        assert run(job).job["computed"] == 0 and verify(job.output).intact
        assert Path(job.output).read_bytes() == expected(verbs, verb)
        job_files = [one.name for one in Path(f"{job.output}.job").rglob("*.*") if "again" in one.name]
        assert job_files == [] == os.listdir(f"{job.output}.job/damaged")
        clear(job)
    assert nth > 4


def fields(verb):
    """(what is changed, in a copy of the job's options or of its files; the field that is named)."""
    yield "count", lambda job: vars(job).update(count=7), "count was None and is 7"
    yield (
        "dtype",
        lambda job: vars(job).update(settings=replace(job.settings, dtype="bfloat16")),
        "dtype was 'float32' and is 'bfloat16'",
    )
    yield "input", lambda job: append(job.input), "the size of the input was"
    yield (
        "weights",
        lambda job: flip(f"{job.model}/model.safetensors"),
        "the model's model.safetensors has other content",
    )
    yield "config", lambda job: append(f"{job.model}/config.json"), "the size of the model's config.json was"
    if verb == "generate":
        yield "seed", lambda job: vars(job).update(seed=4), "seed was 0 and is 4"
        for name, value in {"temperature": 0.5, "max_tokens": 2, "top_p": 0.9, "stop": ("x",), "logprobs": 2}.items():
            change = {"temperature": 1, "max_tokens": 3, name: value}
            yield name, lambda job, change=change: vars(job).update(params=SamplingParams(**change)), f"{name} was"
        yield (
            "tokenizer",
            lambda job: append(f"{job.model}/tokenizer.json"),
            "the size of the model's tokenizer.json was",
        )


def append(path):
    with open(path, "a") as file:
        file.write("\n")


def flip(path):
    with open(path, "r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))


@pytest.mark.parametrize(("verb", "name"), [(verb, name) for verb in VERBS for name, _, _ in fields(verb)])
def test_other_results_are_refused(verbs, tmp_path, verb, name):
    for one in ("textcnn", "gpt2"):
        shutil.copytree(verbs / one, tmp_path / one)
    shutil.copy(verbs / f"{verb}.jsonl", tmp_path)
    job = job_of(tmp_path, verb, f"{verb}.jsonl", "out")
    run(job)
    before = files(tmp_path / "out.jsonl.job")
    change, message = next((change, message) for field, change, message in fields(verb) if field == name)
    change(job)
    with pytest.raises(UsageError, match=f"begun with other settings or inputs: .*{message}"):
        run(job)
    assert files(tmp_path / "out.jsonl.job") == before


@pytest.mark.parametrize("verb", VERBS)
def test_files_that_were_copied_are_no_other_results(verbs, tmp_path, verb):
    """Input and model, with other times of change: that is said, and nothing is done again."""
    job = job_of(verbs, verb, f"{verb}.jsonl", str(tmp_path / "out"), shard_size=2000)
    with pytest.raises(TilewrightError, match="0 are allowed"):
        run(job_of(verbs, verb, f"{verb}.jsonl", str(tmp_path / "out"), shard_size=2000, max_errors=0))
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.copy(job.input, moved)
    shutil.copytree(job.model, moved / Path(job.model).name, copy_function=shutil.copy)
    said: list[str] = []
    there = job_of(moved, verb, f"{verb}.jsonl", str(tmp_path / "out"))
    report = (classify if verb == "classify" else generate)(there, said.append)
    names = ["input", "model.config.json", "model.model.safetensors"]
    assert set(names) <= set(report.job["touched"]) and 0 < report.job["computed"] < report.job["shards"]
    line = "input has another time of change than when the job was begun, and the same content: the job went on"
    assert line in said and Path(job.output).read_bytes() == expected(verbs, verb)


def test_forced_rungs_are_results(verbs, tmp_path):
    from tilewright.ops.core.ladder import using

    job = job_of(verbs, "classify", "classify.bin", str(tmp_path / "out"))
    run(job)
    with using(matmul="cpu.packed"), pytest.raises(UsageError, match=r"rung\.matmul was not there and is 'cpu.packed'"):
        run(job)


def test_records_that_end_their_worker(verbs, tmp_path):
    """One at a time, the one to blame left out: the other lines are those of the whole run."""
    from tilewright.runtime.jobs.cut import Lines
    from tilewright.runtime.jobs.manifest import Manifest
    from tilewright.runtime.jobs.task import Place

    for verb in VERBS:
        job = job_of(verbs, verb, f"{verb}.jsonl", str(tmp_path / verb))
        task = task_of(job)
        with JobDirectory(job.output, make=True) as directory:
            directory.begin(Manifest(fingerprint={}, cut=Lines(os.path.getsize(job.input), 1 << 20)))
            worker, seen = task.open(Place()), []
            with directory.attempt(0) as out:
                shard = directory.shard(0, alone=True, skip=((3, "it ended its worker: SIGSEGV"),))
                record = out.commit(worker.run(shard, out, Noted(seen)))
            worker.close()
            assert (record.records, record.errors) == (RECORDS, ERRORS + 1) and seen == [1, 2, *range(4, RECORDS + 1)]
            lines: list[bytes] = []
            lines.extend(directory.blocks(0))
        found, wanted = b"".join(lines).splitlines(), expected(verbs, verb).splitlines()
        assert json.loads(found[2])["error"] == {"line": 3, "field": "", "message": "it ended its worker: SIGSEGV"}
        assert found[:2] + found[3:] == wanted[:2] + wanted[3:]


class Noted:
    """A beat that keeps the records that come alone."""

    def __init__(self, seen):
        self.at = seen.append

    def __call__(self, done=0, share=None):
        """Lives."""


def task_of(job):
    """What `start` would be given."""
    from tilewright.runtime.verbs.classify import task as classify_module
    from tilewright.runtime.verbs.generate import task as generate_module

    module = classify_module if isinstance(job, ClassifyJob) else generate_module
    return module.task_of(job, lambda text: None)


def test_status_and_verify(verbs, tmp_path, monkeypatch, capsys):
    from tilewright.cli import main

    def said(*argv):
        with pytest.raises(SystemExit) as caught:
            main([*argv])
        return caught.value.code or 0, capsys.readouterr().out

    job = job_of(verbs, "classify", "classify.jsonl", str(tmp_path / "out"), shard_size=2000)
    assert said("status", job.output)[0] == 2
    run(job)
    code, out = said("status", job.output)
    assert code == 0 and out.startswith("finished: ") and "240 records, 13 bad" in out
    assert said("verify", job.output)[0] == 0
    with open(job.output, "ab") as file:
        file.write(b"x")
    code, out = said("verify", job.output)
    assert code == 1 and "output: its" in out
    code, out = said("verify", job.output, "--json")
    assert code == 1 and json.loads(out)["intact"] is False
    assert json.loads(said("status", job.output, "--json")[1])["records"] == RECORDS
    for name in (".job/report.json", ".job/shards/00001.part", ""):
        os.unlink(job.output + name)
    code, out = said("verify", job.output)
    shards = status(job.output).shards
    assert code == 75 and out.startswith(f"unfinished: {shards - 1} of {shards} shards are there, and all that is")
    assert "is intact\nthe job is not finished: no output yet; its command goes on with it" in out
    report = json.loads(said("verify", job.output, "--json")[1])
    assert (report["finished"], report["intact"], report["done"], report["exit_code"]) == (False, True, shards - 1, 75)
    assert "\nrun the same command again to resume it" in said("status", job.output)[1]


def test_the_expected_outputs_are_those_of_one_shard(verbs):
    """So that the comparisons above mean something."""
    for verb in VERBS:
        lines = expected(verbs, verb).splitlines()
        assert len(lines) == RECORDS and sum(b'"error"' in line for line in lines) == ERRORS
        assert len({hashlib.sha256(line).digest() for line in lines}) > 200
