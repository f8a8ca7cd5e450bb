"""A capture that fails says why. A graph is replayed only while the rungs are forced that it was captured with."""

import contextlib
import gc
import warnings
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tilewright.backends.cuda_graph import Repeated, captured  # noqa: E402
from tilewright.ops.core.ladder import forcing  # noqa: E402
from tilewright.ops.softmax import softmax  # noqa: E402


@pytest.fixture(autouse=True)
def capture(monkeypatch):
    """PyTorch's block without a GPU: an error within it ends the capture, which fails for that at the block's end.
    Returns the graphs in the order in which they are replayed."""

    class Graph:
        def replay(self):
            replays.append(self)

    class Block:
        def __init__(self, graph, pool, capture_error_mode):
            pass

        def __enter__(self):
            pass

        def __exit__(self, kind, error, traceback):
            if kind is torch.cuda.OutOfMemoryError and "at once" in str(error):
                warnings.warn("The CUDA Graph is empty. This usually means", stacklevel=1)
            elif kind:
                raise torch.AcceleratorError("operation failed due to a previous error during capture")

    replays = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Block)
    return replays


def test_what_a_call_returns_comes_back():
    _, result = captured(lambda: 5)
    assert result == 5


def test_a_lack_of_memory_is_told_as_one():
    def call():
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory"):
        captured(call)


def test_a_graph_that_is_still_empty_is_no_news():
    def call():
        raise torch.cuda.OutOfMemoryError("CUDA out of memory at once")

    with pytest.raises(torch.cuda.OutOfMemoryError, match="at once"):  # warnings are errors here
        captured(call)


def test_a_lack_of_memory_behind_another_error_is_found():
    def call():
        try:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        finally:
            raise ValueError("cannot go on")

    with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory"):
        captured(call)


def test_another_fault_stays_what_it_is():
    def call():
        raise ValueError("wrong")

    with pytest.raises(torch.AcceleratorError, match="during capture"):
        captured(call)


def test_a_lack_of_memory_keeps_nothing_alive():
    """Else a smaller batch would not find the memory of the one that failed."""

    class Allocated:
        """Stands in for tensors of a caller."""

    def call():
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    def caller():
        tensors = Allocated()
        kept.append(weakref.ref(tensors))
        captured(call)

    kept = []
    gc.disable()
    try:
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            caller()
        assert kept[0]() is None
    finally:
        gc.enable()


def test_a_repeated_call_is_captured_the_second_time_and_then_replayed(capture):
    calls, repeated = [], Repeated()

    def call():
        calls.append(1)
        return len(calls)

    results = [repeated.run(call) for _ in range(4)]
    assert results == [1, 2, 2, 2] and len(calls) == 2
    assert len(capture) == 3 and len(set(capture)) == 1


def test_a_call_that_fails_is_not_captured_next(capture):
    """Its kernels may not be compiled yet."""
    calls, repeated = [], Repeated()

    def call():
        calls.append(1)
        if len(calls) == 3:
            raise ValueError("wrong")

    repeated.run(call)
    repeated.run(call)
    with forcing(softmax="cpu.naive"), pytest.raises(ValueError, match="wrong"):
        repeated.run(call)
    repeated.run(call)
    assert len(calls) == 3 and len(capture) == 2, "under the earlier rungs, the earlier graph is replayed"
    with forcing(softmax="cpu.naive"):
        repeated.run(call)
        assert len(calls) == 4 and len(capture) == 2
        repeated.run(call)
    assert len(calls) == 5 and len(capture) == 3


def test_a_graph_is_not_replayed_while_other_rungs_are_forced(capture):
    calls, repeated = [], Repeated()

    def call():
        calls.append(softmax(np.zeros((2, 8), np.float32)))

    def runs(**rungs):
        """How often three runs call it and replay a graph, and whether softmax counts as run."""
        before = len(calls), len(capture)
        with forcing(**rungs) as ran:
            for _ in range(3):
                repeated.run(call)
        return len(calls) - before[0], len(capture) - before[1], "softmax" in ran

    assert runs() == (2, 2, False)
    assert runs(softmax="cpu.naive") == (2, 2, True)
    assert runs(softmax="cpu.naive") == (0, 3, True), "an operation in a replayed graph counts as run"
    assert runs() == (2, 2, False)
    assert runs() == (0, 3, False)
