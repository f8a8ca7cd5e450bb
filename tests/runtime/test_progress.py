"""Plain lines every few seconds where there is no terminal, a bar where there is one."""

import errno
import io

import pytest

from tilewright.runtime import progress as module
from tilewright.runtime.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("total", "expected"),
    [(200, "60 of 200 sentences (30%), 10 sentences/s, 6 s\n"), (None, "60 sentences (50%), 10 sentences/s, 6 s\n")],
)
def test_plain_lines(clock, total, expected):
    stream = io.StringIO()
    with Progress("sentences", total=total, size=1000, stream=stream) as progress:
        for seconds, records in [(1, 10), (4.9, 49), (6, 60), (10.9, 109)]:
            clock[0] = 100 + seconds
            progress.update(records, 500)
    assert stream.getvalue() == expected


class Full(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


class FullTerminal(Terminal, Full):
    pass


@pytest.mark.parametrize("kind", [Full, FullTerminal])
def test_a_stream_that_cannot_be_written_stops_nothing(clock, kind):
    with Progress("sentences", total=10, size=1000, stream=kind()) as progress:
        for seconds in (6, 12, 18):
            clock[0] = 100 + seconds
            progress.update(5, 500)


def test_bar():
    stream = Terminal()
    with Progress("sentences", total=10, size=1000, stream=stream) as progress:
        progress.update(5, 500)
    assert "50%" in stream.getvalue() and "sentences/s" in stream.getvalue()
