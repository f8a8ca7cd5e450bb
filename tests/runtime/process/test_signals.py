"""SIGINT, SIGTERM, SIGUSR1 and SIGHUP: exit code 75 within the grace time; a second SIGINT ends the process at once."""

import ctypes
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tilewright.errors import Interrupted
from tilewright.runtime.process.signals import stoppable

JOB = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # however the tests were started: nohup and & ignore them
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from tilewright.cli import main
from tilewright.models.textcnn import TextCNN
real = TextCNN.logits
def slow(self, ids):
    if len(ids) > 1:
        {work}
    return real(self, ids)
TextCNN.logits = slow
main(sys.argv[1:])
"""
BEFORE = ["in.bin", "model", "out.bin"]
WORK = 'print("working", flush=True); time.sleep(30)'
DEAF = f"""
        try:
            {WORK}
        except BaseException:
            print("stopped", flush=True)
            time.sleep(30)"""
LOST = f"""
        try:
            {WORK}
        except KeyboardInterrupt:
            pass  # as a callback from foreign code would lose it"""


@pytest.fixture
def start(tmp_path, model, sentences):
    (tmp_path / "out.bin").write_bytes(b"earlier")
    np.tile(sentences, (3, 1)).tofile(tmp_path / "in.bin")
    arguments = [
        "classify",
        "-p",
        model,
        "-i",
        str(tmp_path / "in.bin"),
        "-o",
        str(tmp_path / "out.bin"),
        "--batch-size",
        "40",
        "--grace",
        "1",
        "--force",
    ]

    def call(work):
        command = [sys.executable, "-c", JOB.format(work=work), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in process.stdout:
            if line == "working\n":
                return process
        pytest.fail(process.communicate()[1])

    return call


def check_files(tmp_path):
    """A job without a whole shard leaves nothing, if it may end in order."""
    assert sorted(os.listdir(tmp_path)) in (BEFORE, [*BEFORE, "out.bin.job"])
    assert (tmp_path / "out.bin").read_bytes() == b"earlier"


@pytest.mark.parametrize(
    ("number", "work"),
    [
        (signal.SIGINT, WORK),
        (signal.SIGTERM, WORK),
        (signal.SIGUSR1, WORK),
        (signal.SIGHUP, WORK),
        (signal.SIGTERM, LOST),
    ],
    ids=["SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP", "lost"],
)
def test_first_signal(tmp_path, start, number, work):
    process = start(work)
    assert len(os.listdir(tmp_path)) == 4  # the job is there
    process.send_signal(number)
    sent = time.perf_counter()
    errors = process.communicate(timeout=300)[1]
    assert time.perf_counter() - sent < 10
    assert process.returncode == 75, errors
    assert f"stopped by {number.name}" in errors and "Traceback" not in errors
    check_files(tmp_path)
    assert sorted(os.listdir(tmp_path)) == BEFORE


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_in_a_callback_of_foreign_code_leaves_no_traceback(capfd):
    """As while LLVM compiles: what is raised there is lost, and `check` raises it again."""
    callback = ctypes.CFUNCTYPE(None)(lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(1)))
    told = sys.unraisablehook
    with pytest.raises(Interrupted, match="stopped by SIGTERM"), stoppable() as stop:
        callback()
        stop.check()
    assert sys.unraisablehook is told and capfd.readouterr().err == ""


def test_second_signal(tmp_path, start):
    process = start(DEAF)
    process.send_signal(signal.SIGINT)
    assert any(line == "stopped\n" for line in process.stdout)
    process.send_signal(signal.SIGINT)
    sent = time.perf_counter()
    process.communicate(timeout=300)
    assert process.returncode == 130 and time.perf_counter() - sent < 2
    check_files(tmp_path)


def test_a_second_signal_while_the_process_ends(tmp_path, start):
    """Either the first has ended it or the second does (a shell calls -SIGINT 130, too); never a traceback."""
    for wait in (0.0, 0.02, 0.05, 0.1):
        process = start(WORK)
        process.send_signal(signal.SIGINT)
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=300)[1]
        assert process.returncode in (75, 130, -signal.SIGINT) and "Traceback" not in errors, (
            process.returncode,
            errors,
        )
        check_files(tmp_path)
