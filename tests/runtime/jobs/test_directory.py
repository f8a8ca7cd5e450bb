"""Commits: in labelled steps, private until the end, safe against power cuts; no link is followed."""

import hashlib
import os
import shutil
import time
from pathlib import Path

import pytest

import toy_jobs
from tilewright.errors import ResourceError, UsageError
from tilewright.formats.records import RecordError
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.jobs import directory as module
from tilewright.runtime.jobs import durable
from tilewright.runtime.jobs.cut import Records
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.durable import STEPS, Draft
from tilewright.runtime.jobs.manifest import Damaged, Manifest
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings

FSYNC = os.fsync  # which the tests here do without


@pytest.fixture
def job(tmp_path):
    with JobDirectory(str(tmp_path / "out"), make=True) as directory:
        directory.begin(Manifest(fingerprint={"seed": 1}, cut=Records(4, 40, 4)))
        yield directory


def commit(job, number, content=b"content"):
    with job.attempt(number) as out:
        out.write(content)
        return out.commit(4)


def content(job, number):
    return b"".join(job.blocks(number))


def test_a_shard_and_its_record(job, monkeypatch):
    monkeypatch.setattr(module, "SYNC_SECONDS", 0.0)
    seen = []
    monkeypatch.setattr(durable, "step", lambda label, name: seen.append((label, name)))
    record = commit(job, 3)
    assert seen == [(label, "00003.part") for label in STEPS]
    assert content(job, 3) == b"content" and job.record(3) == record
    assert (record.shard, record.records, record.errors, record.size) == (3, 4, 0, 7)
    assert record.sha256 == hashlib.sha256(b"content").hexdigest() and record.manifest == job.manifest.seal
    assert list(job.committed()) == [3] and job.missing() == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_errors_are_kept(job):
    with job.attempt(2) as out:
        out.error(RecordError(7, "tokens[3]", "is \u202e odd"))
        record = out.commit(1)
    kept = Path(job.path, "errors", "00002.jsonl").read_bytes()
    assert b'"line":7' in kept and (record.errors, record.error_size) == (1, len(kept))
    assert record.error_sha256 == hashlib.sha256(kept).hexdigest()


def test_two_tries_at_a_time(job):
    """As of a run that has lost its lease and the next: each under a name of its own, and the last one stays."""
    with job.attempt(0) as first, job.attempt(0) as second:
        first.write(b"same" * 1000)
        second.write(b"same" * 1000)
        assert len([name for name in job.shards.names() if name.endswith(".tmp")]) == 2
        first.commit(4)
        assert content(job, 0) == b"same" * 1000
        second.commit(4)
    assert content(job, 0) == b"same" * 1000 and job.shards.names() == ["00000.part"]


def test_a_try_that_fails_leaves_nothing(job):
    with pytest.raises(ZeroDivisionError), job.attempt(0) as out:
        out.write(b"x" * (3 << 20))
        raise ZeroDivisionError
    assert job.shards.names() == [] and job.errors.names() == []


def test_left_over_files_of_the_dead_are_removed(job):
    dead = os.posix_spawn("/bin/true", ["true"], os.environ)
    os.waitpid(dead, 0)
    host = os.uname().nodename
    names = {
        f".00001.part.{host}-{dead}-0123abcd.tmp": False,
        f".00001.part.{host}-{os.getppid()}-0123abcd.tmp": True,
        ".00001.part.other-host-12-0123abcd.tmp": True,
        ".00002.part.other-host-12-0123abcd.tmp": False,  # an hour old
        f"00001.part.{host}-{dead}-0123abcd.tmp": True,  # no name of ours
    }
    for name in names:
        Path(job.path, "shards", name).touch()
    os.utime(Path(job.path, "shards", ".00002.part.other-host-12-0123abcd.tmp"), (1e9, 1e9))
    job.clean()
    assert sorted(job.shards.names()) == sorted(name for name, stays in names.items() if stays)


def spoil(path, place, value=1):
    raw = bytearray(path.read_bytes())
    raw[place] ^= value
    path.write_bytes(raw)


@pytest.mark.parametrize("place", range(-30, 0))
def test_a_damaged_record_is_no_record(job, place):
    commit(job, 3)
    for value in (1, 32, 128):
        spoil(Path(job.path, "shards", "00003.part"), place, value)
        assert job.record(3) is None
        spoil(Path(job.path, "shards", "00003.part"), place, value)
    assert job.record(3)


def test_what_is_none_of_this_job_is_put_aside(job, tmp_path):
    with JobDirectory(str(tmp_path / "other"), make=True) as other:
        other.begin(Manifest(fingerprint={"seed": 2}, cut=Records(4, 40, 4)))
        commit(other, 1)
    shards = Path(job.path, "shards")
    shutil.copy(tmp_path / "other.job" / "shards" / "00001.part", shards)
    commit(job, 2)
    shutil.copy(shards / "00002.part", shards / "00003.part")
    (shards / "00004.part").touch()
    (shards / "00005.part").symlink_to(shards / "00002.part")
    (shards / "00006.part").mkdir()
    assert job.missing() == [0, 1, 3, 4, 5, 6, 7, 8, 9]
    assert sorted(job.damaged.names()) == [f"{number:05d}.part" for number in (1, 3, 4, 5, 6)]
    assert job.shards.names() == ["00002.part"]


def test_damage_within_is_found_by_the_copy(job):
    commit(job, 3)
    spoil(Path(job.path, "shards", "00003.part"), 2)
    assert job.record(3)  # the record is whole
    with pytest.raises(Damaged, match="sha256"):
        content(job, 3)


def test_another_manifest_is_refused(job):
    with pytest.raises(UsageError, match=r"seed was 1 and is 2.*--restart"):
        job.begin(Manifest(fingerprint={"seed": 2}, cut=Records(4, 40, 4)))
    commit(job, 0)
    job.begin(Manifest(fingerprint={"seed": 1}, cut=Records(4, 40, 5)))
    assert job.manifest.cut == Records(4, 40, 4) and len(job.missing()) == 9  # the earlier cut stays


@pytest.mark.parametrize("name", ["", "/shards", "/errors", "/logs", "/damaged"])
def test_no_link_is_followed(tmp_path, name):
    outside = tmp_path / "outside"
    outside.mkdir()
    if name:
        (tmp_path / "out.job").mkdir()
    Path(f"{tmp_path}/out.job{name}").symlink_to(outside)
    with pytest.raises(ResourceError, match="symbolic link"):
        JobDirectory(str(tmp_path / "out"), make=True)
    assert list(outside.iterdir()) == []


def test_links_in_it_are_replaced_or_refused(place, tmp_path):
    """Files that are links: what they lead to stays as it is, and the job ends well or with an error."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    for name in ("manifest.json", "report.json", "lease", "lines.index", "shards/00001.part", "errors/00001.jsonl"):
        shutil.rmtree(f"{place.output}.job", ignore_errors=True)
        with JobDirectory(place.output, make=True):
            os.symlink(precious, f"{place.output}.job/{name}")
        try:
            run(place.task(), place.output, Inline())
        except ResourceError as error:
            assert name == "lease", error
        assert precious.read_bytes() == b"precious", name


# A power cut: contents survive that fsync was called for; names survive as of the last fsync of their directory, or,
# where the file system was quick, as they were.


class PowerCut(BaseException):
    """Nothing is done any more."""


class Disk:
    """Cuts the power after the Nth call of the system; what the disk then holds is copied to `target`.

    quick: all names had reached it.
    """

    CALLS = ("open", "write", "fsync", "replace", "unlink")

    def __init__(self, patch, place, target, nth, quick):
        self.place, self.target, self.nth, self.quick = place, target, nth, quick
        self.made, self.contents, self.names = 0, {}, {}
        for name in self.CALLS:
            patch.setattr(os, name, self.counted(name, getattr(os, name)))

    def counted(self, name, call):
        def wrapped(*args, **named):
            done = self.fsync(args[0]) if name == "fsync" else call(*args, **named)
            self.made += 1
            if self.made == self.nth:
                self.copy()
                raise PowerCut
            return done

        return wrapped

    def fsync(self, fd):
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            folder = os.readlink(f"/proc/self/fd/{fd}")
            self.names[folder] = self.files(folder)
        else:
            with open(f"/proc/self/fd/{fd}", "rb") as file:
                self.contents[os.fstat(fd).st_ino] = file.read()

    def files(self, folder):
        return {entry.name: entry.inode() for entry in os.scandir(folder) if entry.is_file() and entry.name != "in"}

    def copy(self):
        for folder, _, _ in os.walk(self.place.path):
            there = Path(self.target, os.path.relpath(folder, self.place.path))
            there.mkdir(exist_ok=True, parents=True)
            for name, inode in (self.files(folder) if self.quick else self.names.get(folder, {})).items():
                with open(there / name, "wb") as file:
                    file.write(self.contents.get(inode, b""))


def cut_power(place, target, monkeypatch, nth, quick):
    """What the disk holds must be no damaged file under its final name, and be enough to go on with. Returns whether
    there were so many calls."""
    shutil.rmtree(f"{place.output}.job", ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    Path(place.output).unlink(missing_ok=True)
    with monkeypatch.context() as patch:
        disk = Disk(patch, place, target, nth, quick)
        try:
            run(place.task(), place.output, Inline(), Settings(shard_size=10))
        except PowerCut:
            pass
        else:
            assert disk.made > 40
            return False
    output = Path(target, "out")
    assert not output.exists() or output.read_bytes() == place.squares
    with JobDirectory(str(output), make=True) as directory:
        for name in ("manifest.json", "report.json"):
            assert directory.root.read(name, 1 << 20) != b""
        if directory.root.read("manifest.json", 1):
            done = len(list(directory.committed()))
            assert len(directory.missing()) == 4 - done and directory.damaged.names() == []
    run(place.task(), str(output), Inline(), Settings(shard_size=10))
    assert output.read_bytes() == place.squares and verify(str(output)).intact
    return True


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "slow"])
@pytest.mark.parametrize("seconds", [0.0, 100.0], ids=["each", "together"])
def test_power_cuts_after_every_call(place, tmp_path_factory, monkeypatch, quick, seconds):
    """seconds: the names of shards are flushed each, or all at the end."""
    monkeypatch.setattr(module, "SYNC_SECONDS", seconds)
    target, nth = tmp_path_factory.mktemp("after"), 1
    while cut_power(place, target, monkeypatch, nth, quick):
        nth += 1


def without_fsync(self, *, sync_names=True):
    self._flush()
    self._close()
    os.replace(self._temporary, self._name, src_dir_fd=self._folder.fd, dst_dir_fd=self._folder.fd)
    self._temporary = ""


def rename_first(self, *, sync_names=True):
    self._flush()
    os.replace(self._temporary, self._name, src_dir_fd=self._folder.fd, dst_dir_fd=self._folder.fd)
    self._temporary = ""
    os.fsync(self._fd)
    self._close()


@pytest.mark.parametrize("defect", [without_fsync, rename_first])
def test_power_cuts_find_defects(place, tmp_path_factory, monkeypatch, defect):
    monkeypatch.setattr(Draft, "commit", defect)
    target = tmp_path_factory.mktemp("after")
    with pytest.raises(AssertionError):
        [cut_power(place, target, monkeypatch, nth, True) for nth in range(1, 40)]


def test_a_durable_shard_survives(place, tmp_path_factory, monkeypatch):
    """With the fsync of the directory left out, a power cut would cost commits of the whole run."""
    monkeypatch.setattr(module, "SYNC_SECONDS", 0.0)
    target, kept = tmp_path_factory.mktemp("after"), []
    with monkeypatch.context() as patch:
        disk = Disk(patch, place, target, -1, False)

        def seen(record):
            shutil.rmtree(target)
            disk.copy()
            kept.append(sorted(os.listdir(f"{target}/out.job/shards")))

        run(place.task(), place.output, Inline(), Settings(shard_size=10), toy_jobs.Seen(seen))
    assert kept == [[f"{n:05d}.part" for n in range(count)] for count in range(1, 5)]


@pytest.mark.parametrize("flushed", [False, pytest.param(True, marks=pytest.mark.long)], ids=["cpu", "disk"])
def test_a_commit_costs_less_than_a_hundredth_of_a_second(job, monkeypatch, flushed):
    """Under 1 % of a shard of one second, with 1 MB of output, its hash and its flushed name: of the processor's time;
    and in the long test of all time, as it is where nothing else keeps the disk busy, in the quickest quarter of 50."""
    monkeypatch.setattr(module, "SYNC_SECONDS", 0.0)  # as it is where shards take longer
    if flushed:
        monkeypatch.setattr(os, "fsync", FSYNC)
    clock = time.perf_counter if flushed else time.thread_time
    data, spent = os.urandom(1_000_000), []
    for number in range(50):
        begin = clock()
        with job.attempt(number) as out:
            out.write(data)
            out.figures["seconds.run"] = 1.0
            out.commit(4)
        spent.append(clock() - begin)
    assert sorted(spent)[12] < 0.01, sorted(spent)
