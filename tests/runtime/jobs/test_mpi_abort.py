"""The message of a rank that calls MPI_Abort reaches the user: by the launcher, and in a file."""

import contextlib
import fcntl
import os
import struct
import sys
import termios
import threading
import time
from types import SimpleNamespace

import pytest

from tilewright.errors import InternalError, TilewrightError, UsageError
from tilewright.runtime.engines.launchers import wait_until_read
from tilewright.runtime.engines.mpi import Mpi

HOST = os.uname().nodename


def unread(fd):
    """Bytes in a pipe."""
    return struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]


@contextlib.contextmanager
def slow_launcher():
    """(stderr of a rank, what was read of it): a launcher that reads it late."""
    reader, writer = os.pipe()
    heard = []

    def read():
        time.sleep(0.1)
        while piece := os.read(reader, 1 << 16):
            heard.append(piece.decode())

    thread = threading.Thread(target=read)
    thread.start()
    with open(writer, "w") as stream:
        yield stream, heard
    thread.join()
    os.close(reader)


class Stopped(Exception):
    """Stands for the end of a process."""


def aborting(monkeypatch, output=None, logs=None):
    """An engine whose MPI_Abort raises Stopped, and the number of bytes that the launcher had not read by then."""
    engine, left = Mpi(), []

    def abort(code):
        left.append(unread(sys.stderr.fileno()))
        raise Stopped(code)

    engine._comm = SimpleNamespace(rank=1, Abort=abort)
    engine._witness = SimpleNamespace(tell=lambda **what: None, record=None)
    engine._staging = SimpleNamespace(home="", is_sending=False)
    engine._output, engine._logs = output, logs
    return engine, left


@pytest.mark.parametrize("error", [UsageError("no such label"), ZeroDivisionError("record 2")])
def test_mpi_abort_comes_after_the_launcher_has_read_the_message(monkeypatch, tmp_path, error):
    """The message is also in a file, and says where."""
    for engine_logs, beside in ((str(tmp_path), "ranks.log"), (None, "out.ranks.log")):
        engine, left = aborting(monkeypatch, str(tmp_path / "out"), engine_logs)
        with slow_launcher() as (stream, heard):
            monkeypatch.setattr(sys, "stderr", stream)
            with pytest.raises(Stopped):
                engine.abort(error)
        what = str(error) if isinstance(error, TilewrightError) else repr(error)
        line = f"rank 1 on {HOST}: {what}\n"
        assert left == [0]
        assert "".join(heard).endswith(f"{line}This message is also in {tmp_path / beside}\n")
        assert (tmp_path / beside).read_text() == line


def test_no_file_is_named_that_could_not_be_written(monkeypatch, tmp_path):
    engine, _ = aborting(monkeypatch, str(tmp_path / "nowhere/out"))
    with slow_launcher() as (stream, heard):
        monkeypatch.setattr(sys, "stderr", stream)
        with pytest.raises(Stopped):
            engine.abort(InternalError("damaged"))
    assert "".join(heard) == f"rank 1 on {HOST}: damaged\n"


def test_the_log_of_a_folder_is_beside_it_until_the_job_succeeds(monkeypatch, tmp_path):
    """The next run would refuse a folder with a file that it does not know."""
    engine, _ = aborting(monkeypatch, f"{tmp_path}/out/")
    with slow_launcher() as (stream, _):
        monkeypatch.setattr(sys, "stderr", stream)
        with pytest.raises(Stopped):
            engine.abort(InternalError("damaged"))
    assert [path.name for path in tmp_path.iterdir()] == ["out.ranks.log"]
    engine._counter = SimpleNamespace(check=lambda: None, post=lambda message: None)
    engine.tell(None)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("is_logged", [False, True])
def test_an_error_is_logged_once(monkeypatch, tmp_path, is_logged):
    """Also if the ranks cannot exit in order after it. is_logged: by the rank that failed."""
    engine, _ = aborting(monkeypatch, logs=str(tmp_path))
    error = InternalError(f"too many bad records (rank 0 on {HOST})")
    engine._counter = SimpleNamespace(failed=error, logged=error if is_logged else None, end=lambda code: False)
    with slow_launcher() as (stream, heard):
        monkeypatch.setattr(sys, "stderr", stream)
        with pytest.raises(Stopped):
            engine._end_others(error)
    line = f"{error}\n"
    assert "".join(heard) == f"{line}This message is also in {tmp_path / 'ranks.log'}\n"
    assert (tmp_path / "ranks.log").exists() != is_logged
    assert is_logged or (tmp_path / "ranks.log").read_text() == line


def test_nobody_reads(monkeypatch, tmp_path):
    """The wait has a limit, and what is no pipe is not waited for."""
    monkeypatch.setattr("tilewright.runtime.engines.launchers.READ_SECONDS", 0.05)
    reader, writer = os.pipe()
    with open(writer, "w", buffering=1) as stream:
        stream.write("unread\n")
        wait_until_read(stream)
        assert unread(reader) == len("unread\n")
    os.close(reader)
    monkeypatch.setattr("tilewright.runtime.engines.launchers.READ_SECONDS", 1e9)
    with open(tmp_path / "file", "w") as stream:
        wait_until_read(stream)
    wait_until_read(stream)  # closed
    wait_until_read(None)
