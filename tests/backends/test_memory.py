"""A batch that a GPU's memory does not hold is halved."""

import pytest

from tilewright.backends.memory import halving
from tilewright.errors import ResourceError

torch = pytest.importorskip("torch")


def needs(memory: int, tried: list[int]):
    def run(batch: int) -> int:
        tried.append(batch)
        if batch > memory:
            raise torch.cuda.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {batch} GiB. Much advice")
        return batch

    return run


def test_a_batch_is_halved_until_it_fits():
    tried = []
    assert halving(needs(30, tried), 100) == 25
    assert tried == [100, 50, 25]


def test_a_capture_that_fails_for_lack_of_memory_is_tried_with_half_the_batch():
    tried = []

    def captured(batch):
        tried.append(batch)
        try:
            return needs(0 if batch > 2 else 9, [])(batch)
        except torch.cuda.OutOfMemoryError:
            raise torch.AcceleratorError("the capture was invalidated")  # noqa: B904 - as the end of a block does

    assert halving(captured, 8) and tried == [8, 4, 2]

    def broken(batch):
        raise torch.AcceleratorError("illegal memory access")

    with pytest.raises(torch.AcceleratorError, match="illegal"):
        halving(broken, 8)


def test_a_batch_of_one_that_does_not_fit_is_an_error():
    tried = []
    with pytest.raises(ResourceError, match="even for a batch of 1: CUDA out of memory"):
        halving(needs(0, tried), 5)
    assert tried == [5, 2, 1]
