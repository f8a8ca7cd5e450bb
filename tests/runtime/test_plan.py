"""What the plans of all verbs have in common."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from tilewright.errors import ResourceError, TilewrightError, UsageError
from tilewright.formats.files import InputFile
from tilewright.runtime import plan as planning
from tilewright.runtime.jobs.contents import Contents
from tilewright.runtime.jobs.cut import Lines, RowGroups
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.manifest import encoded, seal
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.plan import (
    KERNELS,
    PACKAGES,
    PROGRAM,
    SUPERVISOR,
    TOKENIZER_TIMES,
    TOKENIZERS,
    Sample,
    program,
    widened,
)
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.classify.plan import plan


@pytest.fixture
def job(model, sentences, tmp_path):
    def made(**settings):
        given = {"shard_size": 10, **settings}
        return ClassifyJob(model, str(tmp_path / "in.bin"), str(tmp_path / "out.bin"), settings=Settings(**given))

    return made


def test_a_short_text_is_read_and_of_a_long_one_some_of_every_part(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "SAMPLE", 4000)
    for count in (10, 5000):
        path = tmp_path / f"{count}.txt"
        path.write_text("".join(f"{i}\n\n" for i in range(count)))
        with InputFile(path, "input") as file:
            sample = Sample.of(file, Lines(file.size, 100))
            lines, part = [int(line) for _, line, _ in sample.lines(file)], sample.part
        assert (part == 1.0) == (count == 10)
        assert len(lines) / part == pytest.approx(count, rel=0.05)
        assert lines == sorted(set(lines)) and max(lines) == count - 1
        assert sum(line < count / 2 for line in lines) == pytest.approx(len(lines) / 2, rel=0.1)


def test_rows_are_counted_and_lines_of_a_sample_are_not():
    assert Sample(RowGroups((4, 3))).records(2) == (7, True)
    assert Sample(Lines(100, 10), part=0.25).records(5) == (20, False)
    assert Sample(Lines(100, 10)).records(5) == (5, True)


def test_a_process_has_the_packages_that_its_files_and_its_tokenizer_need(tmp_path):
    plain = program("generate", "in.bin", None).bytes
    assert plain == program("convolve").bytes == PROGRAM and program("draw").bytes == PROGRAM + KERNELS["draw"]
    parquet = PACKAGES[".parquet"]
    assert program("generate", "in.parquet", "out.parquet").bytes == plain + parquet
    assert program("generate", "in.bin", model=str(tmp_path)).bytes == plain
    (tmp_path / "tokenizer.json").write_bytes(b"x" * 1000)
    assert program("generate", "in.bin", model=str(tmp_path)).bytes == plain + TOKENIZERS + 1000 * TOKENIZER_TIMES


def test_float16_weights_are_copied_when_they_are_read():
    arrays = {"a": np.zeros((3, 5), np.float16), "b": np.zeros(7, np.float32)}
    assert widened(arrays) == 4 * 15


def test_the_state_is_that_of_what_is_there(job, tmp_path):
    new = plan(job())
    assert (new.begun.state, new.begun.done, new.begun.cut.shards) == ("new", 0, 4)
    assert new.needed == new.outputs.bytes + new.outputs.shards <= new.disk
    classify(job())
    done = plan(job(shard_size=None))
    assert (done.begun.state, done.begun.done, done.begun.cut.shards, done.needed) == ("finished", 4, 4, 0)
    assert plan(job(restart=True)).begun.state == "new"
    report = tmp_path / "out.bin.job" / "report.json"
    report.unlink()
    next((tmp_path / "out.bin.job" / "shards").glob("*.part")).unlink()
    stopped = plan(job())
    assert (stopped.begun.state, stopped.begun.done) == ("stopped", 3)


def test_another_job_in_the_place_is_refused_as_by_the_run(job, model, tmp_path):
    classify(job())
    Path(tmp_path / "in.bin").write_bytes(b"\0" * 480)
    with pytest.raises(UsageError) as ours:
        plan(job())
    with pytest.raises(UsageError) as theirs:
        classify(job())
    assert str(ours.value) == str(theirs.value)


def test_a_job_that_was_killed_at_its_very_start_is_new(job, tmp_path):
    (tmp_path / "out.bin.job" / "shards").mkdir(parents=True)
    found = plan(job()).begun
    assert (found.state, found.done, found.cut.shards) == ("new", 0, 4)
    assert list((tmp_path / "out.bin.job").iterdir()) == [tmp_path / "out.bin.job" / "shards"]


def test_a_touched_file_is_refused_as_by_the_run_unless_its_hash_is_known(job, sentences, bytes_read, tmp_path):
    path = tmp_path / "in.bin"
    np.tile(sentences, (1200, 1)).tofile(path)  # larger than its samples
    settings = {"shard_size": 10_000}
    classify(job(**settings))
    with JobDirectory(str(tmp_path / "out.bin")) as directory:
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        known = encoded(seal(Contents(manifest=directory.manifest.seal, sha256={"input": sha256})))
        directory.root.place("contents.json", known)
    read = bytes_read(path)
    plan(job(**settings))
    untouched = bytes_read(path) - read
    os.utime(path, (1, 1))
    read = bytes_read(path)
    assert plan(job(**settings)).begun.touched == ("input",)
    assert bytes_read(path) - read == untouched  # for the hash none of it was
    (tmp_path / "out.bin.job" / "contents.json").unlink()
    with pytest.raises(UsageError, match="No earlier run has hashed all of it") as ours:
        plan(job(**settings))
    with pytest.raises(UsageError) as theirs:
        classify(job(**settings))
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("name", ["nowhere/trace", ".", "out.bin", "in.bin"])
def test_a_trace_that_cannot_be_written_is_refused_as_by_the_run(job, tmp_path, name):
    trace = str(tmp_path / name)
    with pytest.raises(TilewrightError) as ours:
        plan(job(trace=trace))
    with pytest.raises(TilewrightError) as theirs:
        classify(job(trace=trace))
    assert (str(ours.value), ours.value.exit_code) == (str(theirs.value), theirs.value.exit_code)
    assert plan(job(trace=str(tmp_path / "trace.json"))).begun.state == "new"
    assert not (tmp_path / "trace.json").exists()


def test_an_output_that_cannot_be_written_is_refused(job, tmp_path):
    (tmp_path / "out.bin").mkdir()
    with pytest.raises(ResourceError, match="is a directory"):
        plan(job())


def test_the_rungs_of_the_settings_are_planned(job):
    """The rung without a token table."""
    assert plan(job()).figures["token_table"]
    assert not plan(job(rungs={"embedding_conv1d": "cpu.gather"})).figures["token_table"]


def test_workers_each_take_the_memory_and_one_process_hands_out(job):
    one, three = plan(job()), plan(job(workers=3))
    assert one.total_memory == one.peak_memory
    assert three.processes == 3
    assert three.total_memory == 3 * three.peak_memory + SUPERVISOR
    assert plan(job(workers=9)).processes == 4  # no more than shards
    part = plan(job(shard_size=None, part=(0, 2)))
    assert (part.begun.workers, part.processes) == (2, 1)
