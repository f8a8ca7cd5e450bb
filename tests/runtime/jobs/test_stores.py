"""Jobs whose output is the URL of an object: leases in a store in memory, and whole jobs on a real S3 server."""

import json
import os
import signal
import subprocess
import time

import pytest

import cloud
from tilewright.errors import InternalError, ResourceError
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.jobs.settings import Settings

pytest.importorskip("obstore", reason="obstore is not installed (extra cloud)")

import obstore

import toy_jobs
from tilewright.runtime.stores import board as module
from tilewright.runtime.stores.board import TRIES, Board, Claim, SharedShards
from tilewright.runtime.stores.objects import Objects

URL = "s3://bucket/far/out"


@pytest.fixture(name="memory")
def _memory(monkeypatch, tmp_path_factory):
    """A store in this process's memory."""
    monkeypatch.setenv("TILEWRIGHT_OBJECTS", str(tmp_path_factory.mktemp("copies")))
    return cloud.memory(monkeypatch)


@pytest.fixture(name="s3", scope="module")
def _s3(tmp_path_factory):
    """The environment of processes that reach a real S3 server."""
    pytest.importorskip("moto.server")
    with cloud.s3_server() as environment:
        yield environment | {"TILEWRIGHT_OBJECTS": str(tmp_path_factory.mktemp("copies"))}


@pytest.fixture(name="keys")
def _keys(memory):
    return Objects(f"{URL}.job")


def shards(board, todo, done=lambda among: set(), supervised=False):
    return SharedShards(board, todo, done, lambda numbers: [], supervised=supervised)


def test_a_store_keeps_its_conditions(keys):
    assert keys.put("a", b"1", absent=True)
    found = keys.stat("a")
    assert keys.put("a", b"2", absent=True) is None
    other = keys.put("a", b"3", match=found)
    assert other and keys.put("a", b"4", match=found) is None and keys.put("b", b"4", match=found) is None
    assert keys.get("a")[0] == b"3" and keys.get("b") is None and keys.stat("a").tag == other
    assert keys.put("c", b"123") and keys.get("c", 1)[0] == b"23"
    keys.delete(["a", "b", "c"])
    assert keys.names() == {}


def test_each_shard_has_one_worker(keys):
    with Board(keys) as one, Board(keys) as two:
        mine, yours = shards(one, [0, 1, 2]), shards(two, [0, 1, 2])
        assert (mine.next(), yours.next(), mine.next()) == (0, 1, 2)
        assert (yours.next(), mine.next()) == (None, None)
        mine.done(0, 4)
        assert not mine.over


def test_shards_of_an_ended_worker_are_taken_over(keys, monkeypatch):
    monkeypatch.setattr(module, "KNOWN_SECONDS", -1.0)
    with Board(keys) as right:
        with Board(keys) as left:
            assert shards(left, [0, 1]).next() == 0
            mine = shards(right, [0, 1])
            assert (mine.next(), mine.next()) == (1, None)
            keys.delete([f"workers/{left.id}"])
            mine._next_look = 0.0
            assert mine.next() == 0
        assert [*keys.names("taken")] == ["taken/00000", "taken/00001"], "it is no longer the first worker's to delete"
    assert keys.names() == {}


def test_one_scan_finds_all_shards_of_dead_workers(keys, monkeypatch):
    """A scan of a large job takes seconds. A shard that its worker committed before it died is not run again."""
    committed = set()
    with Board(keys) as right, Board(keys) as left:
        theirs = shards(left, [0, 1, 2])
        assert [theirs.next() for _ in range(3)] == [0, 1, 2]
        keys.delete([f"workers/{left.id}"])
        mine = shards(right, [0, 1, 2], lambda among: committed if among is None else committed & set(among))
        assert mine.next() == 0
        monkeypatch.setattr(keys, "names", None)
        monkeypatch.setattr(mine, "_look", None)
        committed.add(1)
        assert mine.next() == 2
        monkeypatch.undo()


def test_the_last_shards_are_asked_for_one_by_one(keys, monkeypatch):
    """Listing all shards of a large job takes many requests, and near its end every worker waits and scans."""
    committed, asked = set(range(1, 999)), []

    def done(among):
        asked.append(among)
        return committed if among is None else committed & set(among)

    with Board(keys) as left, Board(keys) as right:
        left.take(0)
        mine = shards(right, [*range(1000)], done)
        right.take(999)
        assert mine.next() is None and mine._left == {0, 999}, "the first scan lists the job"
        monkeypatch.setattr(keys, "names", None)
        keys.delete(["taken/00999"])
        mine._next_look = 0.0
        assert mine.next() == 999 and asked == [None, [0, 999]]
        committed.add(0)
        mine.done(999, 1)
        mine._next_look = 0.0
        assert mine.next() is None and mine.over
        monkeypatch.undo()


def test_a_worker_that_is_not_heard_of_has_ended(keys, monkeypatch):
    """By the store's clock alone."""
    monkeypatch.setattr(module, "KNOWN_SECONDS", -1.0)
    with Board(keys) as left, Board(keys) as right:
        assert right.alive(left.id)
        stores, ours = right._beat_at
        right._beat_at = stores + module.LEASE_SECONDS + 1, ours
        assert not right.alive(left.id) and right.alive(right.id)


def test_a_killed_process_of_this_host_is_known_at_once(keys):
    with Board(keys) as board:
        process = subprocess.Popen(["true"])
        process.wait()
        where, _, rest = board.id.rpartition("-")[0].rpartition("-")
        assert int(rest) == os.getpid()
        keys.put(f"workers/{where}-{process.pid}-0", b"{}")
        assert not board.alive(f"{where}-{process.pid}-0")


def test_a_shard_that_ends_every_process(keys, monkeypatch):
    with Board(keys) as board:
        board.take(0, Claim("gone", TRIES - 1), None)
        assert keys.get("taken/00000")[0] == b'{"worker":"%s","tries":%d}' % (board.id.encode(), TRIES)
        keys.put("taken/00000", b'{"worker":"gone","tries":%d}' % TRIES)
        with pytest.raises(InternalError, match="shard 0 was begun by 4 processes, and each of them ended"):
            shards(board, [0]).next()
        assert shards(board, [0], supervised=True).next() == 0


def test_one_run_leads(keys):
    with Board(keys) as one, Board(keys) as two:
        said = "another run works on this job: process"
        with one.leading("wait"), pytest.raises(ResourceError, match=said), two.leading("wait"):
            pass
        with two.leading("wait"):
            pass
    assert keys.names() == {}


def test_a_toy_job_in_memory(place, memory):
    """A shard that was damaged in the store runs again; the output is replaced as a whole."""
    toy_jobs.run_by_url(place.task(), URL, Inline(), Settings())
    assert bytes(obstore.get(memory, "far/out").bytes()) == place.squares
    obstore.put(memory, "far/out.job/shards/00003.part", b"odd")
    obstore.delete(memory, ["far/out.job/report.json", "far/out.job/shards/00004.part"])
    report = toy_jobs.run_by_url(place.task(), URL, Inline(), Settings())
    assert report.computed == 2 and bytes(obstore.get(memory, "far/out").bytes()) == place.squares


def wait_for_shards(environment, count):
    """Returns as soon as the job has so many shards in the store; the environment's client is made here."""
    keys = client(environment)
    until = time.monotonic() + 300
    while sum(len(chunk) for chunk in obstore.list(keys, prefix="far/out.job/shards")) < count:
        assert time.monotonic() < until
        time.sleep(0.05)
    return keys


def client(environment):
    from obstore.store import S3Store

    return S3Store(
        "bucket",
        endpoint=environment["AWS_ENDPOINT_URL"],
        access_key_id="test",
        secret_access_key="test",  # noqa: S106 - any will do
        region="us-east-1",
        client_options={"allow_http": True},
    )


@pytest.mark.long
@pytest.mark.parametrize("output", ["local", URL])
@pytest.mark.parametrize("engine", ["inline", 2])
def test_workers_join_are_killed_and_leave(place, s3, engine, output, monkeypatch):
    """A run and three workers: one is killed, one is told to leave, one stays. No byte differs."""
    keys = client(s3)
    obstore.delete(keys, [found["path"] for chunk in obstore.list(keys, prefix="far") for found in chunk])
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    place.fill(240)
    said = {"engine": engine, "output": place.output if output == "local" else URL, "knobs": {"slow": 0.05}}
    lead = place.start(joinable=output == "local", **said)
    place.wait_for(2)
    if output != "local":
        wait_for_shards(s3, 1)
    workers = [place.start(joins=True, **said) for _ in range(3)]
    pids = {lead.pid}
    until = time.monotonic() + 300
    while len({pid for _, pid, _ in place.begun()}) < (4 if engine == "inline" else 7):
        assert time.monotonic() < until and lead.poll() is None, lead.communicate()
        time.sleep(0.02)
    os.killpg(workers[0].pid, signal.SIGKILL)
    workers[1].terminate()
    ended = [process.communicate(timeout=300) for process in (*workers, lead)]
    assert [process.returncode for process in (*workers, lead)] == [-signal.SIGKILL, 75, 0, 0], (ended, pids)
    left, stayed = (json.loads(ended[n][0]) for n in (1, 2))
    assert left["mine"] > 0 and left["done"] < left["shards"] == 60 == stayed["done"] and stayed["mine"] > 0
    if output == "local":
        place.check()
        assert os.listdir(f"{place.output}.job/taken") == []
    else:
        assert bytes(obstore.get(keys, "far/out").bytes()) == place.squares
    assert len(place.begun()) < 60 + 12, "few shards ran twice"


@pytest.mark.long
def test_a_fleet_that_is_killed_all_the_time():
    pytest.importorskip("moto")
    fleet = pytest.importorskip("tools.fleet")
    assert fleet.main(60, 0.5, 5, 4.0) == 0


@pytest.mark.long
@pytest.mark.parametrize("engine", ["inline", 2])
def test_a_killed_run_goes_on(place, s3, engine, monkeypatch):
    """On a real S3 server: kill -9, then the same command in another process."""
    keys = client(s3)
    obstore.delete(keys, [found["path"] for chunk in obstore.list(keys, prefix="far") for found in chunk])
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    first = place.start(engine=engine, output=URL, knobs={"slow": 0.1})
    wait_for_shards(s3, 3)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    second = place.start(engine=engine, output=URL)
    errors = second.communicate(timeout=300)[1]
    assert second.returncode == 0, errors
    assert bytes(obstore.get(keys, "far/out").bytes()) == place.squares
    assert 0 < len({shard for shard, pid, _ in place.begun()}) == 10
    assert len(place.begun()) < 16, "shards of the first run were kept"
