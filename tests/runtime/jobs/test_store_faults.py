"""Faults of stores, runs and workers of a job in a store: lost answers, runs that are stopped, a lead that is lost."""

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import cloud
import toy_jobs
from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.formats import fetched
from tilewright.runtime.engines import inline
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.task import Watch

pytest.importorskip("obstore", reason="obstore is not installed (extra cloud)")

import obstore
from obstore.store import LocalStore, MemoryStore

from tilewright.runtime.stores import objects
from tilewright.runtime.stores import remote as module
from tilewright.runtime.stores.board import Board, SharedShards
from tilewright.runtime.stores.inputs import fetch
from tilewright.runtime.stores.lead import run_at
from tilewright.runtime.stores.objects import Objects
from tilewright.runtime.stores.remote import PENDING, Publishing, Remote
from tilewright.runtime.stores.stage import staged

URL = "s3://bucket/far/out"
PART = "far/out.job/shards/{:05}.part"
OWN = Settings(keep_others=True)  # as on the command line without --force


real = objects.open_bucket


@pytest.fixture(name="memory", autouse=True)
def _memory(monkeypatch, tmp_path_factory):
    """A store in this process's memory."""
    monkeypatch.setenv("TILEWRIGHT_OBJECTS", str(tmp_path_factory.mktemp("copies")))
    return cloud.memory(monkeypatch)


@pytest.fixture(name="keys")
def _keys(memory):
    return Objects(f"{URL}.job")


def run(task, settings=OWN, engine=None):
    return toy_jobs.run_by_url(task, URL, engine or Inline(), settings)


def content(store, name="far/out"):
    return bytes(obstore.get(store, name).bytes())


def shards(board, todo, done=lambda among: set(), elsewhere=lambda numbers: []):
    return SharedShards(board, todo, done, elsewhere, supervised=False)


def test_an_answer_that_is_lost(keys, monkeypatch):
    """A gateway answers 502 after the store has written. The client repeats the request, and its condition fails."""
    put = keys.put

    def without_answer(name, data, **condition):
        tag = put(name, data, **condition)
        return None if condition else tag

    with Board(keys) as board:
        monkeypatch.setattr(keys, "put", without_answer)
        with board.leading("wait"):
            assert shards(board, [0]).next() == 0
        assert keys.get("lead") is None


def test_a_scan_compares_the_shards_once(keys):
    """Not once for each shard: the scan of a job of 100,000 shards would take minutes."""

    class Counted(set):
        times = 0

        def __rsub__(self, other):
            self.times += 1
            return set(other) - set(self)

    with Board(keys) as board:
        source = shards(board, [*range(100)])
        source._given = Counted()
        source._look()
        assert source._given.times == 2


def test_a_shard_of_its_own_is_not_taken_for_anothers(keys):
    """Its upload may end while the job is scanned."""

    class Uploaded(set):
        def __rand__(self, mine):
            found = set(mine) & set(self)
            source.done(0, 4)
            return found

    found, told = [set(), Uploaded({0})], []
    with Board(keys) as board:
        source = shards(board, [0, 1], lambda among: found.pop(0), lambda numbers: told.append(numbers) or [])
        assert source.next() == 0
        source._look()
    assert told == []


def test_a_host_of_the_same_name(keys):
    """A PID that is gone here says nothing about a process of another host."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    process = subprocess.Popen(["true"])
    process.wait()
    with Board(keys) as board:
        here = board.id.replace(f"-{os.getpid()}-", f"-{process.pid}-")
        there = here.replace(boot, "0" * 8)
        for name in (here, there):
            keys.put(f"workers/{name}", b"{}")
        assert not board.alive(here) and board.alive(there)


def test_missing_objects_among_others_that_are_deleted(monkeypatch, tmp_path):
    """Google's store and Azure report a missing object as an error, as a store in a directory does."""
    store = LocalStore(str(tmp_path))
    monkeypatch.setattr(objects, "open_bucket", lambda bucket, bulk=False: store)
    keys = Objects(f"{URL}.job")
    names = [f"shards/{number}" for number in range(40)]
    keys.put(names[-1], b"1")
    keys.delete(names)
    assert keys.names() == {}


def test_habits_of_azure(place, memory, monkeypatch):
    """Its listing has tags without the quotes of its other answers. It has no ranges that count from the end."""
    run(place.task())
    listed, got = obstore.list, obstore.get

    def other_quotes(*given, **named):
        return [[{**one, "e_tag": f'"{one["e_tag"]}"'} for one in chunk] for chunk in listed(*given, **named)]

    def without_suffix(store, path, *, options=None):
        assert "suffix" not in (options or {}).get("range", {})
        return got(store, path, options=options)

    monkeypatch.setattr(obstore, "list", other_quotes)
    monkeypatch.setattr(obstore, "get", without_suffix)
    monkeypatch.setattr(module, "TRAILER_BYTES", 16)
    with staged(URL) as output:
        remote, whole = Remote(URL, output), content(memory, PART.format(3))
        remote.pull(records_alone=True)
        path = Path(f"{output}.job/shards/00003.part")
        assert path.read_bytes() == bytes(len(whole) - 16) + whole[-16:]
        remote.pull()
        assert path.read_bytes() == whole


def test_objects_of_any_size_on_a_slow_line(monkeypatch, tmp_path):
    """By default obstore ends a request after 30 s, and a download after 3 minutes."""
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    patient, other = (real("s3://slow-line", bulk=bulk) for bulk in (True, False))
    assert patient.client_options == {"allow_http": "true", "timeout": "7 days", "read_timeout": "5 minutes"}
    assert patient.retry_config["retry_timeout"].days == 1 and other.client_options is None
    clients = MemoryStore(), MemoryStore()
    monkeypatch.setattr(objects, "open_bucket", lambda bucket, bulk=False: clients[bulk])
    keys, path = Objects(URL), tmp_path / "large"
    path.write_bytes(bytes(objects.SMALL_BYTES + 1))
    keys.upload("a", str(path))
    keys.upload("b", str(path), keep=True)
    keys.download("a", str(tmp_path / "copy"))
    assert len(obstore.list(clients[True]).collect()) == 2 and keys.names() == {}
    keys.put("lead", b"1")
    assert [*keys.names()] == ["lead"]


def test_a_copy_that_a_power_failure_has_cut_short(memory):
    """A job must not read less than the object, nor lose its ETag."""
    obstore.put(memory, "in", b"0123456789")
    path = fetch("s3://bucket/in")
    origin = fetched.origin(path)
    for cut in (path, f"{Path(path).parent}.json"):
        os.truncate(cut, 4)
        assert fetch("s3://bucket/in") == path
        assert Path(path).read_bytes() == b"0123456789" and fetched.origin(path) == origin


def test_shards_that_workers_commit_while_a_run_resumes(place, memory, monkeypatch):
    """They are neither deleted nor computed again."""
    run(place.task())
    late = content(memory, PART.format(3))
    obstore.delete(memory, ["far/out", "far/out.job/report.json", "far/out.job/delivered.json", PART.format(3)])
    pull = Remote.pull

    def slow(remote, **how):
        pull(remote, **how)
        obstore.put(memory, PART.format(3), late)

    monkeypatch.setattr(Remote, "pull", slow)
    assert run(place.task()).computed == 0 and content(memory) == place.squares


@pytest.mark.parametrize("how", ["restart", "force"])
def test_a_run_that_may_replace_the_output_is_stopped(place, memory, how):
    """The next one may replace it, too, without --restart and --force."""
    if how == "restart":
        run(replace(place.task(), seed=1))
    else:
        obstore.put(memory, "far/out", b"theirs")
    task = place.task(trouble={20: ("taste", 1)})
    with pytest.raises(InputError, match="is not to my taste"):
        run(task, replace(OWN, restart=True) if how == "restart" else Settings())
    assert run(task).computed == 5 and content(memory) == place.squares
    assert not [chunk for chunk in obstore.list(memory, prefix="far/out.job") if "delivering" in str(chunk)]


def test_a_run_with_retry_failed_is_stopped_before_it_delivers(place, memory, monkeypatch):
    """The next run sees that the output lacks the new shards."""
    bad = toy_jobs.Moody(place.input, knobs=place.task().knobs)
    good = replace(bad, bad=False)
    assert run(bad).errors == 1 and content(memory) != place.squares
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(Remote, "deliver", lambda remote, directory: 1 / 0)
        run(good, replace(OWN, engine="local", retry_failed=True))
    report = run(good)
    assert (report.computed, report.errors) == (0, 0) and content(memory) == place.squares


def test_a_finished_job_is_listed_and_not_read(place, memory, monkeypatch):
    """Only shards with errors are read, for their messages. Without --validate the output is not read either."""
    task, asked, got = toy_jobs.Moody(place.input, knobs=place.task().knobs), [], obstore.get
    run(task)
    obstore.put(memory, "far/out.job/pieces/00001", b"left by a killed run")

    def noted(store, path, **named):
        asked.append(path)
        return got(store, path, **named)

    monkeypatch.setattr(obstore, "get", noted)
    with staged(URL) as output:
        report = run_at(URL, task, output, Inline(), OWN, Watch(), reads_output=False)
        assert (report.computed, report.errors) == (0, 1) and "far/out" not in asked
        assert [path for path in asked if "/shards/" in path] == [PART.format(1)]
        with JobDirectory(output) as directory:
            assert len(directory.first_errors(5)) == 1
    assert Objects(f"{URL}.job").names("pieces") == {}
    obstore.delete(memory, PART.format(7))
    assert run(task).computed == 1


def test_the_last_upload_fails(place, monkeypatch):
    """The run ends with its error. It does not wait for the shard, which it holds itself."""
    publish, slept, really = Remote.publish, [], time.sleep

    def failing(remote, record, **how):
        if record.shard == 9:
            raise ResourceError("the store fails")
        publish(remote, record, **how)

    def sleep(seconds):
        slept.append(seconds)
        really(0.001)
        if len(slept) > 2000:
            raise InputError("waits for ever")

    monkeypatch.setattr(Remote, "publish", failing)
    monkeypatch.setattr(inline.time, "sleep", sleep)
    with pytest.raises(ResourceError, match="the store fails"):
        run(place.task())
    assert len(slept) < 2000


def test_few_shards_wait_for_their_upload(monkeypatch):
    """A kill loses them. The guide says how many."""

    class Waited(Exception):
        pass

    class Upload:
        done = staticmethod(lambda: False)

        def result(self):
            raise Waited

    publish, given = Publishing(None, None), []
    monkeypatch.setattr(publish, "_pool", SimpleNamespace(submit=lambda call, record: Upload()))
    with pytest.raises(Waited):
        for number in range(100):
            publish(number)
            given.append(number)
    assert len(given) == 8 == PENDING


def test_a_worker_of_a_job_that_is_begun_anew(place):
    """It would compute all shards of the earlier job, and the new run would delete them."""
    run(place.task())
    with staged(URL) as output:
        remote = Remote(URL, output)
        remote.manifest()
        remote.pull()
        run(replace(place.task(), seed=1), replace(OWN, restart=True))
        with JobDirectory(output, make=True) as directory, pytest.raises(UsageError, match="was begun anew or removed"):
            remote.publish(directory.record(3))


def test_a_store_without_conditional_writes(place, monkeypatch):
    put = Objects.put
    monkeypatch.setattr(Objects, "put", lambda keys, name, data, **condition: put(keys, name, data))
    with pytest.raises(ResourceError, match="although the write was for a missing one only"):
        run(place.task())


def test_a_lease_that_expires_in_its_store(place, memory):
    """The rule of a bucket may remove objects that are a day old. Nobody else leads, so the run goes on."""

    class Slow(Inline):
        def run(self, job):
            super().run(job)
            obstore.delete(memory, ["far/out.job/lead", "far/out.job/manifest.json"])

    assert run(place.task(), engine=Slow()).computed == 10 and content(memory) == place.squares


def test_a_run_that_has_lost_the_lead(place, memory):
    """For example in a laptop that was closed for a while: the output is the other run's."""

    class Suspended(Inline):
        def run(self, job):
            super().run(job)
            obstore.put(memory, "far/out.job/lead", b"another")

    with pytest.raises(ResourceError, match="another run has taken over"):
        run(place.task(), engine=Suspended())
    assert "report.json" not in Objects(f"{URL}.job").names() and Objects(URL).stat("") is None
    assert run(place.task()).computed == 0 and content(memory) == place.squares


@pytest.fixture(name="large")
def _large(place):
    """A place whose input is larger than its samples: only a hash tells its content."""
    path = Path(place.input)
    path.write_bytes(path.read_bytes() * (1_200_000 // path.stat().st_size))
    return place.task(), replace(OWN, shard_size=100_000)


def test_a_worker_whose_input_has_another_time(large, memory):
    """The input lies on each machine by itself. The run has hashed it, so its content counts."""
    task, settings = large

    class Waiting(Inline):
        def run(self, job):
            while not Objects(f"{URL}.job").stat("contents.json"):  # the hash
                time.sleep(0.01)
            super().run(job)

    run(task, settings, Waiting())
    os.utime(task.input, (1, 1))
    hashes = content(memory, "far/out.job/contents.json")
    obstore.delete(memory, ["far/out.job/contents.json"])
    assert toy_jobs.work_on(task, URL, Inline(), settings).exit_code == 0, "it has nothing to do"
    obstore.put(memory, "far/out.job/contents.json", hashes)
    obstore.delete(memory, ["far/out.job/report.json", PART.format(1)])
    assert toy_jobs.work_on(task, URL, Inline(), settings).mine == 1
    raw = bytearray(Path(task.input).read_bytes())
    raw[70_000] ^= 1  # in none of the samples
    Path(task.input).write_bytes(raw)
    with pytest.raises(UsageError, match="input has other content") as caught:
        toy_jobs.work_on(task, URL, Inline(), settings)
    assert caught.value.remedy.startswith("give this machine the files") and "--restart" not in str(caught.value)
    obstore.delete(memory, ["far/out.job/contents.json", PART.format(1)])
    with pytest.raises(UsageError, match=r"No earlier run has hashed all of it.*Start this worker again when"):
        toy_jobs.work_on(task, URL, Inline(), settings)
    with pytest.raises(UsageError, match="Give another output, or --restart") as caught:
        run(task, settings)
    assert "touch" not in str(caught.value)
