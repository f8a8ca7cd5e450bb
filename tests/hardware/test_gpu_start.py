"""The GPU's driver starts in another thread: only for jobs that compute on the GPU in this process, and it hides no
error."""

import threading

import numpy as np
import pytest

from tilewright import backends
from tilewright.backends import cuda
from tilewright.cli._jobs import JobOptions, _start_gpu
from tilewright.hardware import gpu, no_gpu

OUT_OF_MEMORY, PROHIBITED = 2, 46  # errors of cuda.h: 46 if another process uses the GPU exclusively


class Library:
    """Stands in for libcuda. status: of cuDevicePrimaryCtxRetain."""

    def __init__(self, status=0):
        self.status, self.contexts = status, []

    def cuDevicePrimaryCtxRetain(self, context, device):
        self.contexts.append((device, threading.current_thread().name))
        return self.status


def started(monkeypatch, library, count=1, *, context=True):
    """Start a driver that shows `count` GPUs, twice, and wait for the thread."""
    monkeypatch.setattr(gpu, "_driver", lambda: (library, "" if library else "no driver"))
    monkeypatch.setattr(gpu, "gpus", lambda: (object(),) * count)
    gpu.start_ahead.cache_clear()
    for _ in range(2):
        gpu.start_ahead(context=context)
    gpu.start_ahead.cache_clear()
    for thread in threading.enumerate():
        if thread.name == "tilewright-gpu-start":
            thread.join()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("status", [0, OUT_OF_MEMORY, PROHIBITED])
def test_the_context_of_the_only_gpu(monkeypatch, status):
    library = Library(status)
    started(monkeypatch, library)
    assert library.contexts == [(0, "tilewright-gpu-start")]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("count", "context"), [(0, True), (2, True), (1, False)])
def test_no_context(monkeypatch, count, context):
    """With several GPUs each worker has its own; without `context` only the driver starts."""
    library = Library()
    started(monkeypatch, library, count, context=context)
    assert library.contexts == []


@pytest.mark.filterwarnings("error")
def test_without_a_driver_the_error_stays(monkeypatch):
    started(monkeypatch, None, 0)
    assert no_gpu() == "no driver"


def test_without_threads(monkeypatch):
    class Refused(threading.Thread):
        def start(self):
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(gpu.threading, "Thread", Refused)
    library = Library()
    started(monkeypatch, library)
    assert library.contexts == []


@pytest.fixture
def asked(monkeypatch):
    """The calls of `start_ahead`, which does nothing."""
    calls = []
    for module in (gpu, backends):
        monkeypatch.setattr(module, "start_ahead", lambda *, context: calls.append(context))
    return calls


def test_a_backend_for_the_gpu_creates_the_context(asked, monkeypatch):
    monkeypatch.setattr(cuda, "Cuda", lambda dtype, without: asked.append("backend"))
    backends.backend("cpu")
    assert asked == []
    backends.backend("cuda")
    assert asked == [True, "backend"]


@pytest.mark.parametrize(
    ("options", "contexts"),
    [
        ({"device": "cuda"}, [True]),
        ({"device": "cuda", "engine": "inline", "workers": 1}, [True]),
        ({"device": "auto"}, [False]),
        ({"device": "cpu"}, []),
        ({"device": "cuda", "workers": 2}, []),
        *[({"device": "cuda", "engine": engine}, []) for engine in ("local", "mpi", "ray")],
    ],
)
def test_which_jobs_start_the_driver(asked, options, contexts):
    _start_gpu(JobOptions(**options))
    assert asked == contexts


@pytest.mark.parametrize(
    ("words", "contexts"), [((), [False]), (("--device", "cpu"), []), (("--device", "cuda"), [True])]
)
def test_a_job_starts_the_driver_and_a_plan_does_not(asked, monkeypatch, tmp_path, words, contexts):
    from tilewright.cli import main

    monkeypatch.chdir(tmp_path)
    np.save("v.npy", np.ones((4, 4, 4), np.float32))
    for verb in (("plan", "convolve"), ("convolve",)):
        with pytest.raises(SystemExit) as end:
            main([*verb, "-i", "v.npy", "-o", "out.npy", "--kernel", "box:3", *words])
        assert end.value.code in (None, 0, 4 if no_gpu() else 0)
        assert asked[:1] == (contexts if verb == ("convolve",) else [])
