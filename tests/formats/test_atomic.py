"""Output is complete or absent: the Nth system call fails for every N, and an earlier output stays as it was."""

import errno
import os
import shutil
import signal
import subprocess
import sys

import pytest

from tilewright.errors import ResourceError
from tilewright.formats import atomic
from tilewright.formats.atomic import AtomicDirectory, AtomicFile

CALLS = ("open", "write", "fsync", "close", "replace", "fchmod", "rename", "mkdir")


class Fault:
    """Counts the calls of `names` in `os` as the atomic module makes them; the Nth raises."""

    def __init__(self, monkeypatch, nth, code=errno.ENOSPC, names=CALLS):
        self.made, self.nth, self.code = 0, nth, code
        for name in names:
            monkeypatch.setattr(atomic.os, name, self.wrap(getattr(os, name)))

    def wrap(self, call):
        def counted(*args, **kwargs):
            self.made += 1
            if self.made == self.nth:
                if call is close_before_patching:
                    close_before_patching(*args)  # a failing close still closes
                raise OSError(self.code, os.strerror(self.code))
            return call(*args, **kwargs)

        return counted


close_before_patching = os.close


def calls_of(work, monkeypatch):
    """How many calls `work` makes when nothing fails."""
    with monkeypatch.context() as patch:
        fault = Fault(patch, nth=0)
        work()
        return fault.made


def write_file(path):
    with AtomicFile(path) as file:
        file.write(b"new ")
        file.write(b"output")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("earlier", [None, b"earlier"])
def test_every_call_fails_once(tmp_path, monkeypatch, earlier, code):
    path = tmp_path / "out.bin"

    def start():
        path.unlink(missing_ok=True)
        if earlier is not None:
            path.write_bytes(earlier)

    start()
    total = calls_of(lambda: write_file(path), monkeypatch)
    assert total >= 8
    replaced = 0
    for nth in range(1, total + 1):
        start()
        with monkeypatch.context() as patch:
            fault = Fault(patch, nth, code)
            with pytest.raises(ResourceError) as caught:
                write_file(path)
        assert fault.made >= nth
        assert str(path) in str(caught.value) and os.strerror(code).lower() in str(caught.value).lower()
        assert os.listdir(tmp_path) == ([path.name] if path.exists() else []), "a temporary file was left"
        found = path.read_bytes() if path.exists() else None
        replaced += found == b"new output"
        assert found in (earlier, b"new output")
    assert replaced == 3  # only open, fsync and close of the directory come after the rename


def test_commit_order(tmp_path, monkeypatch):
    """fsync before rename, fsync of the directory after it."""
    order = []

    def noting(name, call):
        return lambda *args: (order.append(name), call(*args))[1]

    for name in ("write", "fsync", "close", "replace"):
        monkeypatch.setattr(atomic.os, name, noting(name, getattr(os, name)))
    write_file(tmp_path / "a")
    assert order == ["write", "write", "fsync", "close", "replace", "fsync", "close"]


def test_an_exception_in_the_block_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), AtomicFile(tmp_path / "a") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def test_short_writes_are_completed(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(atomic.os, "write", lambda fd, data: write(fd, bytes(data[:3])))
    write_file(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"new output"


def test_permissions_and_links_are_kept(tmp_path):
    (tmp_path / "real").write_bytes(b"")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    write_file(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new output"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["directory", "missing/out.bin", "file/out.bin", "pipe", "x" * 300])
def test_impossible_outputs_are_found_at_once(tmp_path, name):
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(ResourceError, match=name[:9]), AtomicFile(tmp_path / name):
        pytest.fail("the block was entered")
    assert sorted(os.listdir(tmp_path)) == before


def test_a_missing_directory_is_named(tmp_path):
    for write in (write_file, write_directory):
        with pytest.raises(ResourceError, match=f"no/out: cannot write: there is no directory {tmp_path}/no. Make it"):
            write(tmp_path / "no" / "out")


def test_a_long_name_fits(tmp_path):
    write_file(tmp_path / ("\u00e9" * 120))
    assert (tmp_path / ("\u00e9" * 120)).read_bytes() == b"new output"


def test_unfinished_files_go_with_the_process(tmp_path):
    file = AtomicFile(tmp_path / "a")
    file.__enter__()
    assert len(os.listdir(tmp_path)) == 1
    atomic.remove_unfinished()
    assert os.listdir(tmp_path) == []
    file.discard()


@pytest.fixture
def dead() -> str:
    """The number of a process that has ended."""
    return subprocess.run(["sh", "-c", "echo $$"], capture_output=True, check=True, text=True).stdout.strip()


def test_what_killed_processes_left_is_removed(tmp_path, dead):
    """The temporary files of this output and this host whose process is dead, and no others."""
    host = os.uname().nodename
    for name in (f".a.{host}-{dead}-0123abcd.tmp", f".m.{host}-{dead}-0123abcd.tmp"):
        (tmp_path / name).mkdir() if name.startswith(".m") else (tmp_path / name).write_bytes(b"half")
    kept = [
        f".a.{host}-{os.getpid()}-0123abcd.tmp",
        f".a.elsewhere-{dead}-0123abcd.tmp",
        f".b.{host}-{dead}-0123abcd.tmp",
        f".a.{host}-{dead}-mine.tmp",
        f".m.{host}-{dead}-0123abcd.old",  # an earlier model in the moment when the new one takes its place
        f".a.{host}-1-0123abcd.tmp",
    ]
    for name in kept:
        (tmp_path / name).write_bytes(b"")
    write_file(tmp_path / "a")
    write_directory(tmp_path / "m")
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "a", "m"])


def test_a_killed_process_leaves_what_the_next_one_removes(tmp_path):
    code = (
        "import os, signal, sys; from tilewright.formats.atomic import AtomicFile\n"
        "with AtomicFile(sys.argv[1]): os.kill(os.getpid(), signal.SIGKILL)"
    )
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")])
    assert found.returncode == -signal.SIGKILL and len(os.listdir(tmp_path)) == 1
    write_file(tmp_path / "a")
    assert os.listdir(tmp_path) == ["a"]


def write_directory(path):
    with AtomicDirectory(path, frozenset({"a", "b"})) as temporary, AtomicFile(os.path.join(temporary, "a")) as file:
        file.write(b"new")


@pytest.mark.parametrize("earlier", [False, True])
def test_every_call_of_a_directory_fails_once(tmp_path, monkeypatch, earlier):
    path = tmp_path / "model"

    def start():
        if path.exists():
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        if earlier:
            path.mkdir()
            (path / "b").write_bytes(b"old")

    start()
    total = calls_of(lambda: write_directory(path), monkeypatch)
    for nth in range(1, total + 1):
        start()
        with monkeypatch.context() as patch:
            Fault(patch, nth)
            with pytest.raises(ResourceError) as caught:
                write_directory(path)
        found = sorted(file.name for file in path.iterdir()) if path.exists() else None
        assert found in ((["b"] if earlier else None), ["a"])
        left = set(os.listdir(tmp_path)) - {"model"}
        if "remove the earlier" in caught.value.message:
            assert found == ["a"] and left == {os.path.basename(caught.value.path)}
            shutil.rmtree(caught.value.path)
        else:
            assert caught.value.path.startswith(str(path)) and not left


def test_killed_between_two_renames(tmp_path):
    """The earlier directory exists under its other name alone: whoever opens the output next must not remove it."""
    code = (
        "import os, signal, sys; from tilewright.formats import atomic\n"
        "rename = os.rename\n"
        "atomic.os.rename = lambda *names: (rename(*names), os.kill(os.getpid(), signal.SIGKILL))\n"
        "with atomic.AtomicDirectory(sys.argv[1], frozenset({'b'})): pass"
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "b").write_bytes(b"old")
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path / "model")])
    assert found.returncode == -signal.SIGKILL and not (tmp_path / "model").exists()
    with pytest.raises(KeyboardInterrupt), AtomicDirectory(tmp_path / "model", frozenset()):
        raise KeyboardInterrupt
    (left,) = os.listdir(tmp_path)
    assert (tmp_path / left / "b").read_bytes() == b"old"


def test_a_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.txt").write_text("mine")
    with pytest.raises(ResourceError, match=r"thesis\.txt"):
        write_directory(tmp_path / "model")
    assert (tmp_path / "model" / "thesis.txt").read_text() == "mine" and os.listdir(tmp_path) == ["model"]


def test_a_directory_over_a_file_is_refused(tmp_path):
    (tmp_path / "model").write_text("mine")
    with pytest.raises(ResourceError, match="is a file"):
        write_directory(tmp_path / "model")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a directory"])
def test_what_is_no_file_is_not_replaced_whatever_its_name(tmp_path, make):
    (tmp_path / "faces").mkdir()
    make(tmp_path / "faces" / "00000.png")
    with pytest.raises(ResourceError, match=r"holds other files than .* \(00000\.png\)"):
        AtomicDirectory(tmp_path / "faces", frozenset({"00000.png"})).check_replaceable()
    assert os.listdir(tmp_path / "faces") == ["00000.png"]
