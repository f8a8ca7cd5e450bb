"""Large blocks by memory map: the bytes that were given and no others, whoever else writes, and errors as errors."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.runtime.jobs import mapped
from tilewright.runtime.jobs.mapped import LEAST_BYTES, reserve, write_at


@pytest.fixture
def file(tmp_path):
    """(path, descriptor) of a file of 100 bytes."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    fd = os.open(path, os.O_RDWR)
    yield path, fd
    os.close(fd)


def block(rng, size):
    return memoryview(rng.integers(0, 256, size, np.uint8).tobytes())


@pytest.mark.parametrize("offset", [0, 1, 99, 4096, 12_345])
@pytest.mark.parametrize("size", [0, 7, LEAST_BYTES - 1, LEAST_BYTES, LEAST_BYTES + 4097])
def test_bytes_are_where_they_belong(file, rng, offset, size):
    path, fd = file
    view = block(rng, size)
    write_at(fd, offset, view)
    wanted = bytearray(b"x" * 100).ljust(offset + size if size else 100, b"\0")
    wanted[offset : offset + size] = view
    assert path.read_bytes() == wanted


def test_neighbours_that_write_at_once(file, rng):
    """Blocks that share pages, in two processes, again and again."""
    path = file[0]
    size, count = LEAST_BYTES + 333, 6
    code = """if True:
        import os, sys
        from tilewright.runtime.jobs.mapped import write_at
        first, size, count = map(int, sys.argv[2:])
        fd = os.open(sys.argv[1], os.O_RDWR)
        for _ in range(5):
            for i in range(first, count, 2):
                write_at(fd, i * size, memoryview(bytes([i + 1]) * size))
    """
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(path), str(first), str(size), str(count)])
        for first in range(2)
    ]
    assert [one.wait(60) for one in both] == [0, 0]
    assert path.read_bytes() == b"".join(bytes([i + 1]) * size for i in range(count))


class Refusing:
    """A libc whose fallocate fails, on a disk."""

    def fstatfs(self, *_):
        return 0

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def fallocate(self, *_):
        import ctypes

        if not self.numbers:
            return 0
        ctypes.set_errno(self.numbers.pop(0))
        return -1


@pytest.fixture
def in_memory():
    """(path, descriptor) of a file in memory."""
    folder = Path("/dev/shm")  # noqa: S108
    if not folder.is_dir() or shutil.disk_usage(folder).free < 1 << 28:
        pytest.skip("no file system in memory, or a small one")
    path = folder / f"tilewright-{os.getpid()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    yield path, fd
    os.close(fd)
    path.unlink()


@pytest.mark.parametrize("offset", [0, 99, 4096])
@pytest.mark.parametrize("size", [LEAST_BYTES, LEAST_BYTES + 4097])
def test_memory_is_not_reserved(in_memory, rng, monkeypatch, offset, size):
    path, fd = in_memory
    monkeypatch.setattr(mapped, "AMPLE", 1 << 20)
    monkeypatch.setattr(mapped, "reserve", None)
    first, second = block(rng, size), block(rng, size)
    write_at(fd, offset + size, second)  # beyond the end, as where a later shard is done first
    write_at(fd, offset, first)
    assert path.read_bytes() == bytes(offset) + first + second


def test_memory_that_is_not_ample_is_reserved(in_memory, rng, monkeypatch):
    """A page that there is no room for would be a SIGBUS."""
    asked, left = [], shutil.disk_usage(in_memory[0]).free
    monkeypatch.setattr(mapped, "AMPLE", left - LEAST_BYTES // 2)  # without the block it would do
    monkeypatch.setattr(
        mapped, "reserve", lambda fd, offset, size: asked.append((offset, size)) or reserve(fd, offset, size)
    )
    view = block(rng, LEAST_BYTES)
    write_at(in_memory[1], 77, view)
    assert asked == [(77, LEAST_BYTES)]
    assert in_memory[0].read_bytes() == bytes(77) + view


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG])
def test_a_disk_that_refuses(file, rng, monkeypatch, number):
    path, fd = file
    monkeypatch.setattr(mapped, "_libc", Refusing(number))
    with pytest.raises(OSError, match=os.strerror(number)):
        write_at(fd, 3, block(rng, LEAST_BYTES))
    assert path.read_bytes() == b"x" * 100


@pytest.mark.parametrize("numbers", [(errno.EOPNOTSUPP,), (errno.EINTR, errno.EINVAL), None])
def test_a_file_system_that_reserves_nothing(file, rng, monkeypatch, numbers):
    path, fd = file
    monkeypatch.setattr(mapped, "_libc", numbers and Refusing(*numbers))
    view = block(rng, LEAST_BYTES + 5)
    write_at(fd, 1, view)
    assert path.read_bytes() == b"x" + view


def test_a_file_system_that_maps_nothing(file, rng, monkeypatch):
    path, fd = file

    def mapping(*_, **__):
        raise OSError(errno.ENODEV, "no such device")

    monkeypatch.setattr(mapped.mmap, "mmap", mapping)
    view = block(rng, LEAST_BYTES + 5)
    write_at(fd, 1, view)
    assert path.read_bytes() == b"x" + view


def test_only_whole_pages_are_mapped(file, rng, monkeypatch):
    """Others may hold blocks of the disk that are not reserved."""
    seen, mapping = [], mapped.mmap.mmap

    def watched(fd, size, offset):
        seen.append((offset, offset + size))
        return mapping(fd, size, offset=offset)

    monkeypatch.setattr(mapped.mmap, "mmap", watched)
    write_at(file[1], 5000, block(rng, LEAST_BYTES + 100))
    assert seen == [(8192, 5000 + LEAST_BYTES + 100 - (5000 + LEAST_BYTES + 100) % mapped.PAGE)]


@pytest.mark.skipif(sys.platform != "linux", reason="reserving is Linux's")
def test_an_interrupted_call_is_repeated(file, monkeypatch):
    monkeypatch.setattr(mapped, "_libc", Refusing(errno.EINTR, errno.EINTR))
    assert reserve(file[1], 0, 10)
