"""Shared by all tests: reproducible random numbers, and GPU kernels run as Python unless TILEWRIGHT_GPU=1."""

import os
import signal
import zlib

if os.environ.get("TILEWRIGHT_GPU") != "1":  # before numba and triton are imported, which read these once
    os.environ |= {"NUMBA_ENABLE_CUDASIM": "1", "TRITON_INTERPRET": "1"}

import numpy as np
import pytest

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # to stop


@pytest.fixture(scope="module")
def simulated_gpu():
    """Torch tensors on the CPU run the GPU's kernels as Python, unless TILEWRIGHT_GPU=1."""
    from tilewright.ops.core.gpu.tensors import gpu_kernels_on_the_cpu

    if os.environ.get("TILEWRIGHT_GPU") == "1":
        yield
        return
    with gpu_kernels_on_the_cpu():
        yield


@pytest.fixture
def rng(request) -> np.random.Generator:
    """A generator seeded by the test's own name: the same numbers in every run and order."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


def pytest_configure():
    """However the tests were started: what `nohup`, `&` or `trap ''` of a shell leave ignored, and masks leave blocked,
    is inherited by every process that a test starts. A script of bash cannot even handle such a signal."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in ASKING:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(autouse=True)
def signals_stay():
    """A test leaves no signal ignored or blocked: the next ones would start processes that cannot be asked to stop."""
    before = unheard_signals()
    yield
    after = unheard_signals()
    assert after == before, f"this test leaves signals otherwise: {before} before, {after} after"


def unheard_signals():
    """Those of ASKING that this process ignores or blocks, in the main thread."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return {number.name for number in ASKING if number in blocked or signal.getsignal(number) == signal.SIG_IGN}
