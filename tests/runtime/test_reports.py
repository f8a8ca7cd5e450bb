"""Where the time of a phase goes."""

import threading
import time

import pytest
from numba import types

from tilewright.runtime.reports import Report, phase
from tilewright.simd.kernel import Kernel, _names


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")


def compile_one():
    """Compiles a kernel; returns the seconds that the call took."""
    begin = time.perf_counter()
    _names.discard("test.late")
    Kernel(lambda i: i + 1, types.intp(types.intp), "test.late").compiled()
    return time.perf_counter() - begin


def test_a_kernel_compiled_late_is_not_counted_as_computing():
    report, begin = Report(), time.perf_counter()
    with phase(report, "compile"):
        compile_one()
    early = report.seconds["compile"]
    with phase(report, "run"):
        time.sleep(0.05)
        late = compile_one()
    spent = time.perf_counter() - begin
    compiled = report.seconds["compile"] - early
    assert late / 2 < compiled <= late
    assert report.seconds["run"] >= 0.05
    assert sum(report.seconds.values()) == pytest.approx(spent, rel=0.1)


def test_another_thread_that_compiles_takes_nothing_from_this_one():
    report = Report()
    with phase(report, "run"):
        thread = threading.Thread(target=compile_one)
        thread.start()
        thread.join()
    assert list(report.seconds) == ["run"]
