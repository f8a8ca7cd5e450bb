"""Files with another time of change: the same bytes go on, others do not, whichever of their bytes differ."""

import os
import re
import shlex
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

import toy_jobs
from tilewright.errors import InputError, Interrupted, UsageError
from tilewright.formats.files import InputFile
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.engines.local import Local
from tilewright.runtime.jobs import contents
from tilewright.runtime.jobs.contents import hashing
from tilewright.runtime.jobs.cut import LineIndex, Lines, Whole
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.manifest import Manifest, encoded, file_identity, seal
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings

LINES = 2000  # of 1000 bytes: larger than what is known by its samples alone
BETWEEN = 100_000  # a byte that is in none of the samples


@pytest.fixture
def large(place):
    """A text of 2 MB, of which a run has done two of ten shards, and hashed all."""
    Path(place.input).write_bytes((b"l" * 999 + b"\n") * LINES)
    begin(place)
    return place


def begin(place, wait=True):
    """A run that is stopped at its second shard. wait: until the hash is kept."""

    def look(record):
        if record.shard == 1:
            until = time.monotonic() + 300
            while wait and not os.path.exists(kept(place)):
                assert time.monotonic() < until
                time.sleep(0.005)
            raise Interrupted("enough")

    with pytest.raises(Interrupted):
        run(task(place), place.output, Inline(), Settings(shard_size=200_000), toy_jobs.Seen(look))
    assert len(place.parts()) == 2


def task(place):
    return toy_jobs.Upper(place.input, toy_jobs.Knobs(place.notes))


def kept(place):
    return f"{place.output}.job/contents.json"


def go_on(place):
    """The report of a run that does the rest."""
    report = run(task(place), place.output, Inline())
    lines = Path(place.output).read_bytes().splitlines()
    assert lines[1:] == [b"%d " % n + b"L" * 999 for n in range(1, LINES + 1)]
    return report


def change(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"x")


def test_a_small_file_that_was_touched(place):
    """Known by its samples, which are all of it: nothing is hashed. And a finished job does nothing."""
    with pytest.raises(Interrupted):
        run(place.task(), place.output, Inline(), watch=toy_jobs.Seen(interrupt_at(5)))
    os.utime(place.input, (1, 1))
    report = run(place.task(), place.output, Inline())
    assert (report.computed, report.facts["touched"]) == (4, ["input"])
    place.check()
    assert not os.path.exists(kept(place))
    os.utime(place.input, (2, 2))
    report = run(place.task(), place.output, Inline())
    assert (report.computed, report.facts["touched"]) == (0, ["input"])
    os.utime(place.input, ns=(0, JobDirectory(place.output).manifest.fingerprint["input.changed"]))
    assert run(place.task(), place.output, Inline()).facts["touched"] == ["input"]  # its ctime is another


def interrupt_at(shard):
    def look(record):
        if record.shard == shard:
            raise Interrupted("enough")

    return look


def test_a_large_file_that_was_touched(large):
    os.utime(large.input, (1, 1))
    report = go_on(large)
    assert (report.computed, report.facts["touched"]) == (8, ["input"])


def test_a_large_file_that_was_copied(large):
    os.rename(large.input, f"{large.input}.old")
    with open(large.input, "wb") as file:
        file.write(Path(f"{large.input}.old").read_bytes())
    assert go_on(large).facts["touched"] == ["input"]


def test_a_change_between_the_samples(large):
    """Of the same size, with the same samples: only the hash tells, and it is refused."""
    before = file_identity("input", large.input)
    change(large.input, BETWEEN)
    now = file_identity("input", large.input)
    assert {name for name in now if now[name] != before[name]} == {"input.changed", "input.ctime"}
    with pytest.raises(UsageError, match=r"input has other content than at 2.*--restart") as caught:
        go_on(large)
    assert caught.value.exit_code == 2 and not os.path.exists(large.output) and len(large.parts()) == 2


def test_a_change_while_the_job_goes_on(large):
    """After it was found to be the same."""
    os.utime(large.input, (1, 1))

    def meddle(record):
        if record.shard == 5:
            change(large.input, BETWEEN)

    with pytest.raises(InputError, match=r"changed while it ran: input\.changed was 19\d\d-.* and is 2"):
        run(task(large), large.output, Inline(), watch=toy_jobs.Seen(meddle))
    assert not os.path.exists(large.output)


@pytest.mark.parametrize("engine", [Inline(), Local(2)], ids=["inline", "local"])
def test_what_was_read_of_an_edited_file_is_not_kept(place, engine):
    """It is put back later, and then vouches for nothing that was computed meanwhile."""
    good = Path(place.input).read_bytes()

    def meddle(record):
        if len(place.parts()) >= 3:
            Path(place.input).write_bytes(b"\xff" * len(good))

    with pytest.raises(InputError, match=r"changed while it ran: input\.changed was 2"):
        run(place.task(slow=0.02), place.output, engine, watch=toy_jobs.Seen(meddle))
    assert 3 <= len(place.parts()) <= 6  # some more may have been read before
    Path(place.input).write_bytes(good)
    assert run(place.task(), place.output, Inline()).facts["touched"] == ["input"]
    place.check()


def test_lines_of_an_edited_file_are_counted_anew(place):
    """As many bytes, but other lines, whose numbers are in the output."""
    Path(place.input).write_bytes(b"one line\n" * 100)
    task = toy_jobs.Upper(place.input, toy_jobs.Knobs(place.notes))
    with pytest.raises(Interrupted):
        run(task, place.output, Inline(), Settings(shard_size=90), toy_jobs.Seen(interrupt_at(2)))
    (place.path / "edited").write_bytes(b"x" * 900)
    seal = JobDirectory(place.output).manifest.seal
    with open(f"{place.output}.job/lines.index", "r+b") as index, closing(InputFile(place.path / "edited", "it")) as it:
        LineIndex(index.fileno(), "", Lines(900, 90), seal).first_line(it, 10)
    os.utime(place.input, (1, 1))
    run(task, place.output, Inline())
    lines = Path(place.output).read_bytes().splitlines()
    assert lines == [b"# 100 lines, 0 bad", *(b"%d ONE LINE" % n for n in range(1, 101))]


@pytest.mark.parametrize("how", ["never", "damaged", "another job's"])
def test_a_hash_that_is_not_known(large, how):
    """It is refused in words, and the command in them helps."""
    if how == "never":
        os.unlink(kept(large))
    elif how == "damaged":
        change(kept(large), 20)
    else:
        content = contents.Contents(manifest="0" * 64, sha256={"input": "0" * 64})
        Path(kept(large)).write_bytes(contents.encoded(contents.seal(content)))
    os.utime(large.input, (1, 1))
    with pytest.raises(
        UsageError, match=r"the input was last changed at 19\d\d-.*:01\.000; .* was 2.*\. Its size is"
    ) as caught:
        go_on(large)
    command = re.search(r"touch \S+same-content", str(caught.value))[0]
    assert "--restart" in str(caught.value)
    subprocess.run(shlex.split(command), check=True)
    assert go_on(large).facts["touched"] == ["input"]
    change(large.input, BETWEEN)  # of this nobody has said so
    with pytest.raises(UsageError, match="not known whether its content is the same"):
        go_on(large)


@pytest.mark.parametrize("how", ["chmod", "link", "moved", "edited"])
def test_a_status_that_was_changed(large, how):
    """Only the ctime tells; the content decides."""
    before = os.stat(large.input)
    if how == "chmod":
        os.chmod(large.input, 0o600)
    elif how == "link":
        os.link(large.input, f"{large.input}.too")
    elif how == "moved":
        os.rename(large.input, f"{large.input}.away")
        os.rename(f"{large.input}.away", large.input)
    else:
        change(large.input, BETWEEN)
        os.utime(large.input, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(large.input).st_mtime_ns == before.st_mtime_ns
    if how != "edited":
        assert go_on(large).facts["touched"] == ["input"]
        return
    with pytest.raises(UsageError, match=r"input has other content than at 2"):
        go_on(large)
    os.unlink(kept(large))
    with pytest.raises(UsageError, match=r"the status of the input was changed .* not known"):
        go_on(large)


def test_a_job_of_a_version_that_noted_no_ctime(place):
    """It goes on."""
    with pytest.raises(Interrupted):
        run(place.task(), place.output, Inline(), watch=toy_jobs.Seen(interrupt_at(5)))
    manifest = JobDirectory(place.output).manifest
    older = {name: value for name, value in manifest.fingerprint.items() if name != "input.ctime"}
    assert len(older) == len(manifest.fingerprint) - 1
    then = seal(Manifest(fingerprint=older, cut=manifest.cut))
    Path(f"{place.output}.job/manifest.json").write_bytes(encoded(then))
    assert "touched" not in run(place.task(), place.output, Inline()).facts
    place.check()


def test_a_run_that_ends_before_the_hash(large, monkeypatch):
    """It does not wait for it, and nothing of it is kept."""
    monkeypatch.setattr(contents, "REST", 1e6)
    began, threads = time.monotonic(), threading.active_count()
    run(task(large), large.output, Inline(), Settings(shard_size=200_000, restart=True))
    assert time.monotonic() - began < 10 and not os.path.exists(kept(large))
    assert threading.active_count() == threads


def test_a_file_that_is_not_as_the_job_began_is_not_hashed(tmp_path):
    """Nor one that is written to while it is read."""
    path = tmp_path / "in"
    path.write_bytes(bytes(3 << 20))
    with JobDirectory(str(tmp_path / "out"), make=True) as directory:
        directory.begin(Manifest(fingerprint=file_identity("input", str(path)), cut=Whole()))
        os.utime(path, (1, 1))
        contents._hash(directory, {"input": str(path)}, {}, threading.Event())
        assert "contents.json" not in directory.root.names()
        with hashing(directory, {"input": str(tmp_path / "gone")}):
            pass


def test_a_file_that_becomes_what_it_was_while_it_is_hashed(tmp_path, monkeypatch):
    """What was read of it is not what the job began with."""
    path = tmp_path / "in"
    path.write_bytes(bytes(3 << 20))
    digest, before = contents._digest, os.stat(path).st_mtime_ns

    def restore(*args):
        found = digest(*args)
        os.utime(path, ns=(before, before))
        return found

    monkeypatch.setattr(contents, "_digest", restore)
    with JobDirectory(str(tmp_path / "out"), make=True) as directory:
        directory.begin(Manifest(fingerprint=file_identity("input", str(path)), cut=Whole()))
        os.utime(path, (1, 1))
        contents._hash(directory, {"input": str(path)}, {}, threading.Event())
        assert "contents.json" not in directory.root.names()


def test_a_change_while_it_is_hashed(tmp_path, monkeypatch):
    path = tmp_path / "in"
    path.write_bytes(bytes(3 << 20))
    digest = contents._digest

    def meddle(*args):
        found = digest(*args)
        change(path, BETWEEN)
        return found

    with JobDirectory(str(tmp_path / "out"), make=True) as directory:
        directory.begin(Manifest(fingerprint=file_identity("input", str(path)), cut=Whole()))
        contents._hash(directory, {"input": str(path)}, {}, threading.Event())
        assert "contents.json" in directory.root.names()
        directory.root.remove("contents.json")
        monkeypatch.setattr(contents, "_digest", meddle)
        contents._hash(directory, {"input": str(path)}, {}, threading.Event())
        assert "contents.json" not in directory.root.names()


def test_it_works_a_twentieth_of_the_time(tmp_path):
    """So that a job is not slower for it: 60 MiB take it twenty times as long as they take to read and hash."""
    path = tmp_path / "in"
    path.write_bytes(bytes(60 << 20))
    with JobDirectory(str(tmp_path / "out"), make=True) as directory:
        directory.begin(Manifest(fingerprint=file_identity("input", str(path)), cut=Whole()))
        cpu, began = time.thread_time(), time.perf_counter()
        contents._hash(directory, {"input": str(path)}, {}, threading.Event())
        cpu, took = time.thread_time() - cpu, time.perf_counter() - began
    assert cpu < 0.1 * took, (cpu, took)


def test_a_part_that_is_not_the_first_hashes_nothing(large):
    os.unlink(kept(large))
    seen = []
    real = contents.hashing
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "hashing", lambda directory, files, noted: seen.append(files) or real(directory, files))
        for part in range(2):
            run(task(large), large.output, Inline(), Settings(part=(part, 2)))
    assert seen == [{"input": large.input}, {}]
