"""Workers that join a job: in a local directory, and in a store in memory."""

import errno
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import toy_jobs
from tilewright.errors import UsageError
from tilewright.formats.records import RecordError
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.engines.local import Local
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.durable import Draft, Folder
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.record import again_name
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Job, Place, open_worker, run_shard
from tilewright.runtime.stores import board as module
from tilewright.runtime.stores.board import Board
from tilewright.runtime.stores.folder import FolderKeys
from tilewright.runtime.stores.joinable import Joinable


@pytest.fixture(name="keys")
def _keys(place):
    with JobDirectory(place.output, make=True) as directory:
        keys = FolderKeys(directory.root)
        yield keys
        keys.close()


def test_a_folder_keeps_the_conditions_of_a_store(keys):
    assert keys.put("taken/0", b"1", absent=True)
    found = keys.stat("taken/0")
    assert keys.put("taken/0", b"2", absent=True) is None
    other = keys.put("taken/0", b"3", match=found)
    assert other and keys.put("taken/0", b"4", match=found) is None and keys.put("taken/1", b"4", match=found) is None
    assert keys.get("taken/0")[0] == b"3" and keys.get("taken/1") is None
    assert [*keys.names("taken")] == ["taken/0"]
    keys.delete(["taken/0", "taken/1"])
    assert keys.names("taken") == {}


class Helper:
    """Another process, as far as the run can tell: joins after the first shard, and makes the shards of `takes`."""

    def __init__(self, place, takes, leaves):
        self.place, self.takes, self.leaves, self.board = place, takes, leaves, None

    def __call__(self, record):
        if self.board is None:
            self.join()

    def join(self):
        with JobDirectory(self.place.output) as directory:
            directory.joined = True
            self.keys = FolderKeys(directory.root)
            self.board = Board(self.keys)
            if self.leaves:  # the name of a process that has ended
                ended = subprocess.Popen(["true"])
                ended.wait()
                self.board.id = self.board.id.replace(f"-{os.getpid()}-", f"-{ended.pid}-")
            self.board.__enter__()
            assert all(self.board.take(number) for number in (*self.takes, *self.leaves))
            task = self.place.task()
            worker = open_worker(task, directory, Place())
            for number in self.takes:
                run_shard(worker, directory, directory.shard(number), lambda *done: None)
                self.board.committed(number, 4)
            worker.close()
        if self.leaves:
            self.board._ended.set()


@pytest.mark.parametrize("engine", [Inline, pytest.param(lambda: Local(2), marks=pytest.mark.long)])
def test_a_run_shares_its_shards_with_a_worker_that_joins(place, engine, monkeypatch):
    monkeypatch.setattr(module, "KNOWN_SECONDS", -1.0)
    helper = Helper(place, takes=[7, 8], leaves=[9])
    report = run(place.task(), place.output, Joinable(engine()), watch=toy_jobs.Seen(helper))
    place.check()
    assert report.computed == 8 and report.records == 40
    begun = [shard for shard, _, _ in place.begun()]
    assert sorted(begun) == [*range(10)] and begun.index(7) < begun.index(3)
    assert [os.listdir(f"{place.output}.job/{name}") for name in ("taken", "workers")] == [[], []]
    assert report.facts["others"] == 2
    assert run(place.task(), place.output, Joinable(engine())).computed == 0


def test_a_worker_has_left_before_the_run_looks(place):
    """The run does not compute its shards again."""

    class Short(Helper):
        def join(self):
            super().join()
            self.board.__exit__(None, None, None)
            self.keys.close()

    helper = Short(place, takes=[7, 8], leaves=[])
    report = run(place.task(), place.output, Joinable(Inline()), watch=toy_jobs.Seen(helper))
    place.check()
    assert (report.computed, report.facts["others"]) == (8, 2)
    assert os.listdir(f"{place.output}.job/taken") == []


def test_a_worker_keeps_a_shard_that_is_there(place):
    """A late one must not replace what the run has settled."""
    run(place.task(), place.output, Inline())
    with JobDirectory(place.output) as directory:
        before = Path(place.output + ".job/shards/00003.part").read_bytes()
        directory.joined = True
        worker = open_worker(place.task(), directory, Place())
        run_shard(worker, directory, directory.shard(3), lambda *done: None)
        worker.close()
    assert Path(place.output + ".job/shards/00003.part").read_bytes() == before
    place.check()


def test_a_worker_without_others_costs_nothing(place, monkeypatch):
    monkeypatch.setattr(FolderKeys, "__init__", None)
    run(place.task(), place.output, Joinable(Inline()))
    place.check()


def test_a_late_worker_keeps_the_errors_of_a_shard_that_is_there(place):
    """The run may have made a record with a repeated id an error since then."""
    run(toy_jobs.Moody(place.input), place.output, Inline())
    with JobDirectory(place.output) as directory:
        directory.joined = True
        with directory.attempt(1) as out:
            out.error(RecordError(5, "", "of the late worker"))
            out.commit(4)
    assert verify(place.output).intact


def test_a_worker_that_ends_while_the_run_commits_a_shard_again(place):
    """It leaves the file of errors, which the run renames after its commit."""
    run(toy_jobs.Moody(place.input), place.output, Inline())
    with JobDirectory(place.output) as directory:
        directory.errors.place(again_name(1), b"{}\n")
        directory.joined = True
        directory.clean()
        assert again_name(1) in directory.errors
        directory.joined = False
        directory.clean()
        assert again_name(1) not in directory.errors


def test_a_worker_of_a_job_that_is_begun_anew(place):
    """It would write what the earlier job computes into the output of the new one."""
    run(place.task(), place.output, Inline())
    with JobDirectory(place.output) as directory:
        directory.joined = True
        directory.attempt(3).__exit__(None, None, None)
        run(replace(place.task(), seed=1), place.output, Inline(), Settings(restart=True))
        with pytest.raises(UsageError, match="the job was begun anew or removed since this worker joined it"):
            directory.attempt(3)


def test_a_worker_process_that_starts_after_the_job_is_begun_anew(place):
    """It would give the results of the earlier job the seal of the new one."""
    run(place.task(), place.output, Inline())
    with JobDirectory(place.output) as directory:
        assert directory.manifest
        run(replace(place.task(), seed=1), place.output, Inline(), Settings(restart=True))
        os.unlink(f"{place.output}.job/shards/00003.part")
        job = Job(place.task(), directory, Settings(), Stop(), [3], lambda *done: None, lambda *about: None)
        with pytest.raises(UsageError, match="the job was begun anew"):
            Local(1).run(job)
    assert "00003.part" not in place.parts()


def test_a_file_that_replaces_none_without_hard_links(place, monkeypatch):
    def refused(*names, **folders):
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refused)
    folder = Folder(str(place.path))
    for content in (b"first", b"second"):
        with Draft(folder, "file") as draft:
            draft.write(content)
            draft.commit_unless_there()
    assert Path(place.path, "file").read_bytes() == b"first" and place.temporary() == []
    folder.close()
