"""The command line in a process of its own: signals, and streams that are closed or full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from options import replaced
from tilewright import cli


def tilewright(*arguments, env=None, **options) -> subprocess.Popen:
    """The command line in a process of its own."""
    around = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2]), **(env or {})}
    return subprocess.Popen([sys.executable, "-m", "tilewright", *arguments], env=around, text=True, **options)


def closed_pipe():
    """The writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return open(writing, "w")


def full_disk():
    return open("/dev/full", "w")


@pytest.mark.parametrize("broken", [closed_pipe, full_disk])
def test_a_job_does_not_need_its_stdout(run, small, broken):
    run(*small)
    os.rename("out.bin", "expected.bin")
    for streams in (("stdout",), ("stdout", "stderr")):
        with broken() as stream:
            process = tilewright(*small, **{"stderr": subprocess.PIPE, **dict.fromkeys(streams, stream)})
            errors = process.communicate()[1]
        assert (process.returncode, errors or "") == (0, "")
        assert Path("out.bin").read_bytes() == Path("expected.bin").read_bytes()
        os.unlink("out.bin")


RESULTS = [["doctor"], ["validate", "in.bin", "in.bin"], ["validate", "in.bin", "in.bin", "--json"], ["classify"]]


@pytest.mark.parametrize("arguments", RESULTS)
def test_a_result_that_cannot_be_written(run, small, arguments):
    """On a full disk that is an error; a reader that is gone has what it wanted."""
    call = [*small, "--json"] if arguments == ["classify"] else arguments
    with full_disk() as stream:
        process = tilewright(*call, stdout=stream, stderr=subprocess.PIPE)
        errors = process.communicate()[1]
    assert process.returncode == 4
    assert "Error: stdout: cannot write: no space left on device" in errors and "Traceback" not in errors
    with closed_pipe() as stream:
        process = tilewright(*call, stdout=stream, stderr=subprocess.PIPE)
        errors = process.communicate()[1]
    assert process.returncode == 0 and "Error" not in errors and "Exception" not in errors


def test_a_ladder_that_nobody_reads_stops(monkeypatch):
    with closed_pipe() as stream:
        process = tilewright("ladder", "matmul", stdout=stream, stderr=subprocess.PIPE)
        assert process.communicate(timeout=300) == (None, "") and process.returncode == 0


def test_names_that_no_terminal_shows(run, small):
    code, out, _ = run(*replaced(small, "-o", "out\x1b[31m.bin"))
    assert code == 0 and "out\\x1b[31m.bin" in out and "\x1b" not in out
