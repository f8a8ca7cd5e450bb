"""A rank that ends ends the job; who it was, at which shard and record is known, and later runs get past it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from tilewright.runtime.engines import far_deaths
from tilewright.runtime.engines import witness as module
from tilewright.runtime.engines.deaths import assignments
from tilewright.runtime.engines.schedule import KILLS, Assignment
from tilewright.runtime.engines.witness import Witness, forget_deaths, note_death
from tilewright.runtime.jobs.directory import JobDirectory


def test_shards_that_have_ended_ranks(place):
    with JobDirectory(place.output, make=True) as directory:
        assert assignments(directory, [3, 5]) == [Assignment(3), Assignment(5)]
        for shard, record in [(5, None), (6, None), (5, None), (7, None), (7, 70), (7, 71), (7, 71), (8, 80)]:
            note_death(directory.logs.path, shard, record, "SIGSEGV")
        for _ in range(KILLS):
            note_death(directory.logs.path, 10, 100, "killed or crashed", killed=True)
            note_death(directory.logs.path, 11, 110, "killed or crashed", killed=True)
        forget_deaths(directory.logs.path, 11)
        note_death(directory.logs.path, 11, 110, "killed or crashed", killed=True)
        with open(directory.logs.where("deaths.jsonl"), "a") as file:
            file.write('{"shard": 6, "recor')
        skip = ((71, "it ended its worker: SIGSEGV"),)
        told = "it ended its worker: killed or crashed (killed from outside: the next run tries it again)"
        assert assignments(directory, [5, 6, 7, 8, 9, 10, 11]) == [
            Assignment(5, True, (), 2),
            Assignment(6, False, (), 1),  # once may be chance
            Assignment(7, True, skip, 4),
            Assignment(8, False, (), 1),
            Assignment(9),
            Assignment(10, True, ((100, told),), KILLS, doubted=1),
            Assignment(11, False, (), 1),
        ]


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """Processes that tell a witness what they are told to, and die."""
    if sys.platform != "linux":
        pytest.skip("a witness needs Linux's epoll and abstract sockets")
    (tmp_path / "logs").mkdir()
    start_process, started = subprocess.Popen, []
    with monkeypatch.context() as patch:
        silent = {"stderr": subprocess.DEVNULL}
        patch.setattr(subprocess, "Popen", lambda *a, **k: started.append(start_process(*a, **k, **silent)))
        name = module._start()
    code = """if True:
        import signal, sys
        from tilewright.runtime.engines.witness import SIGNALS, connected
        silent, other = (connected(chr(0) + sys.argv[1]) for _ in range(2))
        signals = connected(chr(0) + sys.argv[1], SIGNALS)
        signals.setblocking(False)
        signal.set_wakeup_fd(signals.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGUSR2):
            signal.signal(number, lambda number, frame: None)
        for line in sys.stdin.buffer:
            other.sendall(line)
            print(flush=True)
    """

    def start(number):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", code, name[1:]], **pipes)
        started.append(process)

        def tell(**what):
            say(json.dumps(what).encode())

        def say(line):
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            process.stdout.readline()

        tell(rank=number, pid=process.pid, logs=str(tmp_path / "logs"), log_size=0)

        def kill():
            process.kill()
            process.wait()

        return SimpleNamespace(tell=tell, say=say, kill=kill, pid=process.pid)

    start.witness, start.name = started[0].pid, name
    yield start
    for process in started:
        process.kill()
        process.communicate()


def logged(tmp_path, name="ranks.log", wait=True):
    """What stands in the log, as soon as something does."""
    path, until = tmp_path / "logs" / name, time.monotonic() + (300 if wait else 0.3)
    while not (path.exists() and path.stat().st_size) and time.monotonic() < until:
        time.sleep(0.01)
    return path.read_text() if path.exists() else ""


def test_a_killed_rank_is_named_with_its_shard(ranks, tmp_path):
    first, second = ranks(0), ranks(1)
    first.tell(shard=7, record=None)
    second.tell(shard=8, record=None)
    second.tell(record=83)
    second.kill()
    deaths = logged(tmp_path, "deaths.jsonl")
    assert json.loads(deaths) == {"shard": 8, "record": 83, "why": "killed or crashed", "killed": True}
    assert logged(tmp_path) == f"rank 1 on {os.uname().nodename}: process {second.pid} was killed or crashed\n"


def test_the_first_to_die_is_named(ranks, tmp_path):
    """However late the witness looks, and whatever the second one was just telling."""
    first, second = ranks(0), ranks(1)
    os.kill(ranks.witness, signal.SIGSTOP)
    second.tell(shard=8, record=None)
    first.tell(shard=7, record=None)
    first.kill()
    second.kill()
    os.kill(ranks.witness, signal.SIGCONT)
    assert logged(tmp_path).startswith("rank 0 on ") and '"shard": 7' in logged(tmp_path, "deaths.jsonl")


def test_a_rank_that_is_to_stop_blames_no_shard(ranks, tmp_path):
    """Batch systems kill what has not stopped in time."""
    rank = ranks(0)
    rank.tell(shard=7, record=None)
    rank.tell(stopping=True)
    rank.kill()
    assert "was killed" in logged(tmp_path) and not logged(tmp_path, "deaths.jsonl", wait=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGUSR2])
def test_a_rank_that_a_signal_asked_blames_no_shard(ranks, tmp_path, number):
    """Even if it had no time to say so; a signal that asks for nothing changes nothing."""
    first, second = ranks(0), ranks(1)
    first.tell(shard=6, record=None)
    second.tell(shard=7, record=None)
    os.kill(second.pid, number)
    second.tell(shard=7)  # it has come by now
    second.kill()
    asked = number != signal.SIGUSR2
    said = f"process {second.pid} was killed or crashed" + ", after a signal had asked it to stop" * asked
    assert logged(tmp_path) == f"rank 1 on {os.uname().nodename}: {said}\n"
    assert bool(logged(tmp_path, "deaths.jsonl", wait=not asked)) == (not asked)


def test_a_signal_of_another_rank_is_no_excuse(ranks, tmp_path):
    first, second = ranks(0), ranks(1)
    first.tell(shard=6, record=None)
    second.tell(shard=7, record=None)
    os.kill(first.pid, signal.SIGTERM)
    first.tell(shard=6)
    second.kill()
    assert '"shard": 7' in logged(tmp_path, "deaths.jsonl")


def test_a_rank_that_another_ended_is_not_named(ranks, tmp_path):
    """It dies before the one that has said why, which is still writing."""
    first, second = ranks(0), ranks(1)
    second.tell(shard=8, record=None)
    first.tell(all=True)
    second.kill()
    assert logged(tmp_path, wait=False) == ""


def test_a_rank_that_another_node_ended_is_not_named(ranks, tmp_path):
    """That node has said why in the job's log."""
    rank = ranks(0)
    rank.tell(shard=8, record=None)
    (tmp_path / "logs" / "ranks.log").write_text("rank 5 on elsewhere: ...\n")
    rank.kill()
    time.sleep(0.3)
    assert logged(tmp_path) == "rank 5 on elsewhere: ...\n" and not logged(tmp_path, "deaths.jsonl", wait=False)


@pytest.mark.parametrize("first", [b"garbage\n", b"-5 \n", b"12 other\n", b"\n", b"\xff\xfe", b""])
def test_who_begins_otherwise_is_no_rank(ranks, tmp_path, first):
    """Before the first rank comes and later; the witness goes on, and tells nothing of it."""

    def come():
        with socket.socket(socket.AF_UNIX) as stray:
            stray.settimeout(10)
            stray.connect(ranks.name)
            assert stray.recv(1) == b"\n"
            stray.sendall(first)
            stray.shutdown(socket.SHUT_WR)
            assert stray.recv(1) == b""

    come()
    rank = ranks(0)
    come()
    rank.kill()
    assert logged(tmp_path) == f"rank 0 on {os.uname().nodename}: process {rank.pid} was killed or crashed\n"


@pytest.mark.parametrize(
    "line",
    [
        b"{", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"rank": "\\u001b[31m", "shard": 9}', b'{"rank": true}',
        b'{"shard": "9"}', b'{"shard": 9, "more": 1}', b'{"all": 1}', b'{"logs": null}', b'{"pid": 1}', b"9" * 5000,
    ],
)  # fmt: skip
def test_what_no_rank_would_tell_is_not_heard(ranks, tmp_path, line):
    """And whose process it is, is known from the kernel."""
    rank = ranks(0)
    rank.tell(shard=7, record=None)
    rank.say(line)
    rank.kill()
    assert logged(tmp_path) == f"rank 0 on {os.uname().nodename}: process {rank.pid} was killed or crashed\n"
    assert json.loads(logged(tmp_path, "deaths.jsonl"))["shard"] == 7


@pytest.fixture(name="home")
def _home(ranks):
    """Where nodes without the logs report deaths, to the witness of `ranks`, as rank 0 asks it."""
    rank = Witness.__new__(Witness)
    rank.record, rank._socket = None, module.connected(ranks.name)
    yield rank.listen()
    rank._socket.close()


def test_a_death_on_a_node_without_the_logs(ranks, home, tmp_path, capsys):
    """The rank of this node that mpiexec kills next is not named."""
    first = ranks(0)
    first.tell(shard=6, record=None)
    assert not far_deaths.send(json.dumps(json.loads(home) | {"key": "other"}), {"shard": 1, "why": "", "killed": True})
    module._tell({"home": home, "rank": 3, "pid": 12, "shard": 8, "record": 83, "logs": "/nowhere"}, "")
    assert capsys.readouterr().err.endswith(
        "killed or crashed\nRun the same command again: the finished shards are saved\n"
    )
    first.kill()
    os.waitid(os.P_PID, ranks.witness, os.WEXITED | os.WNOWAIT)
    death = {"shard": 8, "record": 83, "why": "killed or crashed", "killed": True}
    assert [json.loads(line) for line in logged(tmp_path, "deaths.jsonl").splitlines()] == [death]
    assert logged(tmp_path) == f"rank 3 on {os.uname().nodename}: process 12 was killed or crashed\n"


def test_a_death_on_a_node_with_the_logs_alone(ranks, home, tmp_path):
    """No other node tells of one."""
    first = ranks(0)
    first.tell(shard=6, record=None)
    first.kill()
    assert json.loads(logged(tmp_path, "deaths.jsonl"))["shard"] == 6


def test_a_crash_elsewhere_is_why_a_rank_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FAR_SECONDS", 300.0)
    (tmp_path / "logs").mkdir()
    far, said = module._Far(), []
    rank = SimpleNamespace(known={"listen": "key", "logs": str(tmp_path / "logs"), "log_size": 0}, answer=said.append)
    far.open(rank)
    home = far_deaths.home_of(said[0], "key")
    crash = 'Fatal Python error: Segmentation fault\n\n  File "x.py", line 1\n'
    with ThreadPoolExecutor() as pool:
        told = pool.submit(module._tell, {"home": home, "rank": 3, "pid": 12, "shard": 8, "record": None}, crash)
        far.wait([rank])
        told.result()
    assert json.loads(logged(tmp_path, "deaths.jsonl"))["why"] == "SIGSEGV" and crash in logged(tmp_path)
    with ThreadPoolExecutor() as pool:
        told = pool.submit(far_deaths.send, home, {"shard": 8, "forget": True})
        far.hear([rank])
        assert told.result()
    assert '"forget": true' in logged(tmp_path, "deaths.jsonl").splitlines()[-1]
    far._server.close()


def test_a_folder_of_no_name_ends_nothing():
    module.note_death("a\0b", 1, None, "killed")
    assert module.log_size("a\0b") == 0


@pytest.mark.parametrize("other", [False, True])
def test_who_is_another_user_is_sent_away(monkeypatch, other):
    if sys.platform != "linux":
        pytest.skip("a witness needs Linux's epoll and abstract sockets")
    user = os.geteuid()
    monkeypatch.setattr(module.os, "geteuid", lambda: user + other)
    name = f"\0tilewright-test-{os.getpid()}-{other}"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(name)
        server.listen()
        client.settimeout(10)
        client.connect(name)
        accepted = module._accept(server)
        assert client.recv(1) == (b"" if other else b"\n")
    assert (accepted is None) == other
    if accepted:
        accepted[0].close()


def test_a_rank_without_a_witness(monkeypatch):
    monkeypatch.setattr(module.sys, "platform", "darwin")
    rank = Witness(None, os.open(os.devnull, os.O_RDONLY))
    rank.tell(shard=1, record=5)
    assert rank.record == 5
    rank.close()


def test_a_socket_that_is_gone_stops_nothing(monkeypatch):
    rank = Witness.__new__(Witness)
    rank.record = None
    rank._silent, rank._signals = [], None
    rank._socket, other = socket.socketpair()
    other.close()
    rank.tell(shard=1)
    rank.close()
