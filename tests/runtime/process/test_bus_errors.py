"""A mapped file cut short by another program: a paragraph and exit code 3, on whatever thread, and a job to resume."""

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from forked_verbs import PATHS
from tilewright.errors import InputError
from tilewright.runtime.convert.models import init_textcnn
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.classify import task as classify_module
from verb_jobs import Cutting

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the action is for Linux alone")
COMMAND = """
import sys
from tilewright.runtime.verbs.classify import task as classify
from verb_jobs import Cutting
classify.ClassifyTask = Cutting
from tilewright.cli import main
main(sys.argv[1:])
"""


def python(code, *arguments, **environment):
    """(exit status, stdout and stderr) of a program; a hang is a failure, minutes later."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(PATHS), **environment}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def wide(tmp_path, rng):
    """A model whose embedding has 39 pages of 4 KiB, and sentences of most of its tokens."""
    init_textcnn(str(tmp_path / "wide"), 3, vocab_size=5000, sequence_length=6, hidden_size=8, num_filters=5,
                 kernel_sizes=(2, 3), hidden_sizes=(7,))  # fmt: skip
    rng.integers(0, 5000, (900, 6), np.int32).tofile(tmp_path / "in.bin")
    return tmp_path / "wide"


def put_back(weights, content, status):
    weights.write_bytes(content)
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.long), 2])
def test_weights_cut_short_while_a_job_runs(wide, tmp_path, threads):
    weights, output = wide / "model.safetensors", tmp_path / "out.bin"
    classify(ClassifyJob(str(wide), str(tmp_path / "in.bin"), str(tmp_path / "right.bin")))
    content, status = weights.read_bytes(), weights.stat()
    command = ["classify", "-p", wide, "-i", tmp_path / "in.bin", "-o", output, "--threads", threads]
    command += ["--shard-size", 300, "--batch-size", 300]
    code, said = python(COMMAND, *command)
    assert code == 3, said
    error = said[said.index("Error: ") :]
    assert (
        error.startswith(f"Error: {weights}: a page of the model's weights could not be read")
        and error.count("\n") == 1
    )
    assert "put the whole file back, then run the same command again" in error.lower() and "Traceback" not in said
    assert not output.exists()
    put_back(weights, content, status)
    code, said = python(COMMAND, *command)
    assert code == 0 and "Resumed: 1 of 3 shards" in said, said
    assert output.read_bytes() == (tmp_path / "right.bin").read_bytes() and verify(str(output)).intact


@pytest.mark.parametrize("wanted", [True, False])
def test_an_object_on_stdout_with_json(wide, tmp_path, wanted):
    """The object that every error has with --json, though native code ends the process; none without it."""
    classify(ClassifyJob(str(wide), str(tmp_path / "in.bin"), str(tmp_path / "right.bin")))
    command = ["classify", "-p", wide, "-i", tmp_path / "in.bin", "-o", tmp_path / "out.bin", "--threads", "1"]
    command += ["--shard-size", "300", "--batch-size", "300", *["--json"] * wanted]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(PATHS)}
    done = subprocess.run([sys.executable, "-c", COMMAND, *map(str, command)], capture_output=True, text=True, env=env,
                          timeout=600, check=False)  # fmt: skip
    assert done.returncode == 3 and "Error: " in done.stderr, done.stderr
    if not wanted:
        assert '"error"' not in done.stdout + done.stderr
        return
    told = json.loads(done.stdout)
    assert told["exit_code"] == told["error"]["code"] == 3
    assert told["error"]["path"] == str(wide / "model.safetensors")
    assert told["error"]["message"].startswith("a page of the model's weights could not be read")
    assert done.stdout.count("\n") == 1


def test_weights_cut_short_under_workers(wide, tmp_path, monkeypatch):
    """The worker ends by SIGBUS; the one that replaces it finds other weights than the job was begun with."""
    weights, output = wide / "model.safetensors", tmp_path / "out.bin"
    settings = Settings(workers=2, shard_size=100, batch_size=50)
    job = ClassifyJob(str(wide), str(tmp_path / "in.bin"), str(output), settings=settings)
    classify(ClassifyJob(str(wide), str(tmp_path / "in.bin"), str(tmp_path / "right.bin")))
    content, status = weights.read_bytes(), weights.stat()
    monkeypatch.setattr(classify_module, "ClassifyTask", Cutting)
    with pytest.raises(InputError, match=r"changed while it ran|model\.safetensors") as caught:
        classify(job)
    assert caught.value.exit_code == 3 and not output.exists()
    put_back(weights, content, status)
    classify(job)
    assert output.read_bytes() == (tmp_path / "right.bin").read_bytes() and verify(str(output)).intact


FAULT = """
import ctypes, faulthandler, os, signal, sys, threading, time
import numpy as np
from numba import types
from tilewright import simd
from tilewright.formats.files import InputFile
from tilewright.ops.core.launch import run_on_threads, threads
from tilewright.runtime.process import bus_errors

path, how = sys.argv[1], sys.argv[2]
file = InputFile(path, "weights")
data = np.frombuffer(file.map(), np.float32)
words = np.zeros(2, np.int64)

@simd.kernel(types.void(simd.INPUT, simd.COUNTERS, types.int64, simd.OUTPUT), name="test.read")
def read(data, words, spared, scratch):
    "The last page, on the thread whose scratch is not at the address `spared`, once another has set a word."
    if scratch.ctypes.data != spared:
        simd.store_release(words, 1, 1)
        while simd.load_acquire(words, 0) == 0:
            simd.relax()
        scratch[0] = data[len(data) - 1]

def hold():
    "Python's lock, for ever, from when the kernel has begun."
    while words[1] == 0:
        time.sleep(0.001)
    words[0] = 1
    ctypes.PyDLL(None).pause()

def fault():
    scratch = np.zeros(16, np.float32)
    read(data, words, scratch.ctypes.data, scratch)
    words[0] = 1
    os.truncate(path, 4096)
    if how == "python":
        bytes(memoryview(data)[-8:])
    elif how == "kernel":
        read(data, words, 0, scratch)
    elif how in ("helper", "both"):
        from tilewright.ops.core import launch
        spared = launch.scratch(1).ctypes.data if how == "helper" else 0
        with threads(2):
            run_on_threads(read, data, words, spared, tasks=2, words=1, drawn=False)
    elif how == "locked":
        words[:] = 0
        threading.Thread(target=hold, daemon=True).start()
        read(data, words, 0, scratch)
    elif how == "sent":
        os.kill(os.getpid(), signal.SIGBUS)
    else:
        other = InputFile(sys.argv[3], "weights")
        import mmap
        unknown = mmap.mmap(other.fd, other.size, access=mmap.ACCESS_READ)
        os.truncate(sys.argv[3], 0)
        bytes(unknown)

if how != "plain":
    faulthandler.enable()
with bus_errors.explained():
    fault()
"""


@pytest.mark.parametrize("how", ["python", "kernel", "helper", "both", "locked"])
def test_a_fault_on_any_thread(tmp_path, how):
    """Also in two threads at once, and while another thread holds the lock of Python for ever."""
    path = tmp_path / "weights"
    np.ones(1 << 16, np.float32).tofile(path)
    code, said = python(FAULT, path, how, TILEWRIGHT_CACHE="off")
    assert code == 3 and said.startswith(f"Error: {path}: a page of the weights could not be read"), said
    assert said.count("\n") == 1


@pytest.mark.parametrize("how", ["sent", "unknown", "plain"])
def test_another_bus_error_ends_the_process_as_before(tmp_path, how):
    """Sent by a process, or in a map that nobody told of; Python's fault handler still says where, if it is on."""
    for name in ("weights", "other"):
        np.ones(1 << 16, np.float32).tofile(tmp_path / name)
    code, said = python(FAULT, tmp_path / "weights", how, tmp_path / "other", TILEWRIGHT_CACHE="off")
    assert code == -signal.SIGBUS and "Error: " not in said.replace("Fatal Python error: ", ""), said
    assert ("Fatal Python error: Bus error" in said) == (how != "plain"), said


ENDED = """
import faulthandler, os, signal
from tilewright.runtime.process import bus_errors
def caught():
    line = next(line for line in open("/proc/self/status") if line.startswith("SigCgt:"))
    return int(line.split()[1], 16) >> (signal.SIGBUS - 1) & 1
with bus_errors.explained():
    with bus_errors.explained():
        assert caught()
    assert caught()
assert not caught()
for _ in range(2):  # one that is enabled within the block stays, whatever it has found there
    with bus_errors.explained():
        faulthandler.enable()
assert caught()
with bus_errors.explained():
    os.kill(os.getpid(), signal.SIGBUS)
"""


def test_the_earlier_action_is_there_again():
    code, said = python(ENDED)
    assert code == -signal.SIGBUS and "Fatal Python error: Bus error" in said, said


WRITTEN = """
import os, sys
import numpy as np
from tilewright.runtime.process import bus_errors
from tilewright.runtime.jobs import mapped
told = mapped.explain_faults
def cut(*arguments):
    told(*arguments)
    os.truncate(sys.argv[1], 0)
mapped.explain_faults = cut
with bus_errors.explained(), open(sys.argv[1], "w+b") as file:
    mapped.write_at(file.fileno(), 0, memoryview(np.ones(4 << 20, np.uint8)))
"""


def test_an_output_cut_short_while_it_is_written(tmp_path):
    code, said = python(WRITTEN, tmp_path / "out")
    assert code == 4 and said.startswith(f"Error: {tmp_path / 'out'}: a page could not be written"), said


def test_closed_maps_are_forgotten(tmp_path):
    from tilewright.formats import mapped
    from tilewright.formats.files import InputFile

    path = tmp_path / "weights"
    path.write_bytes(b"x" * 5000)
    before = mapped.FAULTS.copy()
    for _ in range(2 * mapped.SLOTS):
        with InputFile(path, "weights") as file:
            file.map().close()
    assert np.array_equal(mapped.FAULTS, before)
    with InputFile(path, "weights") as file:
        maps = [file.map() for _ in range(mapped.SLOTS + 1)]
    assert np.count_nonzero(mapped.FAULTS[:, 1]) == mapped.SLOTS and maps.clear() is None
    assert np.array_equal(mapped.FAULTS, before)
    shutil.rmtree(tmp_path)
