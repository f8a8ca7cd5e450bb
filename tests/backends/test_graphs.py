"""A capture that fails says why."""

import contextlib
import gc
import warnings
import weakref
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tilewright.backends.cuda import captured  # noqa: E402


@pytest.fixture(autouse=True)
def capture(monkeypatch):
    """PyTorch's block without a GPU: an error within it ends the capture, which fails for that at the block's end."""

    @contextmanager
    def block(graph, pool, capture_error_mode):
        try:
            yield
        except (RuntimeError, ValueError) as error:
            if isinstance(error, torch.cuda.OutOfMemoryError) and "at once" in str(error):
                warnings.warn("The CUDA Graph is empty. This usually means", stacklevel=1)
                raise
            raise torch.AcceleratorError("operation failed due to a previous error during capture")  # noqa: B904

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", block)


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
