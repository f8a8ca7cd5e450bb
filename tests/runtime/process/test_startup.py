"""What comes before a job: closed, full and broken streams cost no result, and no signal is without its exit code."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilewright.cli import explained
from tilewright.errors import ResourceError
from tilewright.ops.core import team
from tilewright.ops.core.launch import threads

TESTS = Path(__file__).parents[2]
LONG = pytest.mark.long
STREAMS = [
    "2>&-", "<&- >&- 2>&-", ">/dev/full 2>&1",
    *(pytest.param(how, marks=LONG) for how in ("<&-", ">&-", ">&- 2>&-", ">/dev/full", "2>/dev/full")),
]  # fmt: skip


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=LONG)])
def test_streams_that_are_closed_or_full(tmp_path, model, sentences, streams, workers):
    """The output is whole, and nothing of what is said or logged lies in it or in a shard."""
    sentences.tofile(tmp_path / "in.bin")
    command = [sys.executable, "-m", "tilewright", "classify", "-p", model, "-i", "in.bin", "--workers", workers]
    seen = {}
    for name, how in (("plain", ""), ("odd", streams)):
        line = f'"$@" -o {name}.bin {how}'
        done = subprocess.run(["bash", "-c", line, "bash", *command], cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, (how, done.stderr)
        seen[name] = (tmp_path / f"{name}.bin").read_bytes()
    assert seen["odd"] == seen["plain"] and len(seen["plain"]) > 0


@pytest.mark.parametrize(("loaded", "exempt"), [("json", True), ("triton", False)])
def test_a_command_collects_little_garbage(loaded, exempt):
    """Not a tenth of its start, and nothing at its end, unless Triton would call that a leak."""
    code = (
        "import gc, sys; from tilewright.runtime.process import startup; startup.prepare(); "
        f"first = gc.get_threshold()[0]; sys.modules[{loaded!r}] = sys; "
        "startup.finish(); print(first, len(gc.get_objects()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, visited = map(int, done.stdout.split())
    assert first == 50_000 and (visited < 100) == exempt


LEAVE = """
import atexit, sys, threading, types
from tilewright.runtime.process import startup
atexit.register(print, "handler")
print("said", end=" ")
code, going = 3, threading.Event()
sys.modules["torch"] = types.ModuleType("torch")
{setting}
try:
    startup.leave(code)
finally:
    going.set()
print("stays", end=" ")
sys.exit(code)
"""
STAYS = {
    "no PyTorch": "del sys.modules['torch']",
    "MPI": "sys.modules['mpi4py.MPI'] = sys",
    "a thread": "threading.Thread(target=going.wait).start()",
    "a debugger": "sys.settrace(lambda *event: None)",
    "a profiler": "import cProfile; cProfile.Profile().enable()",
    "a profiler of CUDA": "import os; os.environ['CUDA_INJECTION64_PATH'] = 'library.so'",
    "a prompt": "sys.ps1 = '>>> '",
    "a message": "code = 'message'",
}


def ended(setting, **options):
    code = LEAVE.format(setting=setting)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run([sys.executable, "-c", code], text=True, stderr=subprocess.PIPE, env=buffered, **options)


def test_a_command_with_pytorch_exits_without_freeing_objects():
    done = ended("", stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout, done.stderr) == (3, "said handler\n", "")
    done = ended("code = None", stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "said handler\n", "")


@pytest.mark.parametrize("reason", STAYS)
def test_python_ends_the_process_if_it_must(reason):
    done = ended(STAYS[reason], stdout=subprocess.PIPE)
    wanted = (1, "message\n") if reason == "a message" else (3, "")
    assert (done.returncode, done.stderr) == wanted
    assert done.stdout == "said stays handler\n"


def test_output_that_cannot_be_written_has_pythons_own_exit_code():
    with open("/dev/full", "w") as full:
        usual, done = (ended(setting, stdout=full) for setting in (STAYS["no PyTorch"], ""))
    assert done.returncode == usual.returncode == 120
    assert "No space left" in done.stderr


def test_descriptors_of_a_job_are_none_of_the_standard_streams():
    """Where all three are closed, a file that is opened next has another number."""
    code = "from tilewright.runtime.process.startup import hold_streams; hold_streams(); import os, sys; "
    code += "print('lost'); fd = os.open(os.devnull, 0); sys.exit(fd if fd > 2 and sys.stderr and sys.stdin else 1)"
    line = 'exec "$@" <&- >&- 2>&-'
    done = subprocess.run(["bash", "-c", line, "bash", sys.executable, "-c", code], check=False)
    assert done.returncode == 3


def catches(pid, number):
    """Whether a process has a handler for this signal, for which Python itself has none."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line for line in lines if line.startswith("SigCgt:"))
    return int(caught.split()[1], 16) >> (number - 1) & 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which signals a process handles")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
@pytest.mark.parametrize("later", [0.0, 0.05])
def test_a_signal_while_the_command_line_starts(tmp_path, model, sentences, number, later):
    """From its first line on the exit code is 75, also where whoever started it has blocked the signal."""
    sentences.tofile(tmp_path / "in.bin")
    code = f"import os, signal, sys; signal.signal({signal.SIGHUP:d}, signal.SIG_DFL); "
    code += f"signal.pthread_sigmask(signal.SIG_BLOCK, [{number:d}]); os.execv(sys.executable, sys.argv[1:])"
    job = [sys.executable, "-m", "tilewright", "classify", "-p", model, "-i", "in.bin", "-o", "out.bin"]
    process = subprocess.Popen([sys.executable, "-c", code, *job], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        while not catches(process.pid, number):
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(later)
        process.send_signal(number)
        said = process.stderr.read()
        process.wait()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert process.returncode == 75, said
    assert f"stopped by {number.name}" in said and "Traceback" not in said, said
    assert not os.path.exists(tmp_path / "out.bin")


def test_no_more_threads(monkeypatch):
    """Kernels run on those that there are, with the same bits; what cannot be done without one is a clear refusal."""
    import numpy as np

    import tilewright as tw

    a = np.random.default_rng(1).standard_normal((700, 300), np.float32)
    with threads(1):
        alone = tw.matmul(a, a.T)
    started = []

    class Few(team.threading.Thread):
        def start(self):
            if started:
                raise RuntimeError("can't start new thread")
            started.append(self)
            super().start()

    monkeypatch.setattr(team.threading, "Thread", Few)
    monkeypatch.setattr("tilewright.ops.core.launch._teams", [])
    with threads(4):
        for _ in range(2):
            assert np.array_equal(tw.matmul(a, a.T), alone)
    assert len(started) == 1
    for error in (RuntimeError("can't start new thread"), BlockingIOError(11, "Resource temporarily unavailable")):
        known = explained(error)
        assert isinstance(known, ResourceError) and known.exit_code == 4 and "--workers" in known.remedy
