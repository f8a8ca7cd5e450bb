"""Declared bytes: sums of parts, weights without a GPU, and what PyTorch's allocator and the backend make of them."""

import pytest

from tilewright.backends import footprint
from tilewright.backends.footprint import ALWAYS, MERGING, PREPARING, RUNNING, Part, cached, halved, peak_of, total
from tilewright.backends.protocol import Operand
from tilewright.errors import Refused, ResourceError
from tilewright.ops import matmul
from tilewright.ops.core.ladder import Memory, using


def test_the_peak_is_what_is_always_there_and_the_phase_that_takes_most():
    parts = (Part("a", 5, ALWAYS), Part("b", 3, RUNNING), Part("c", 4, MERGING), Part("d", 2, RUNNING))
    assert peak_of(parts) == 10
    assert peak_of(parts[:1]) == 5
    assert peak_of((Part("a", 5, PREPARING),)) == 5


def test_weights_are_prepared_one_after_the_other():
    assert total([Memory(10, 4), Memory(20, 1)]) == Memory(30, 1)
    assert total([Memory(10, 40), Memory(20, 5, 7)]) == Memory(30, 20, 7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "tf32"])
@pytest.mark.parametrize(("K", "N"), [(768, 50), (37, 50)])
def test_a_gpu_that_is_elsewhere_has_the_weights_of_a_rung_for_it(dtype, K, N):
    problem = matmul.Problem(N, K, dtype, "cuda")
    rung = footprint.chosen(matmul.ladder, problem)
    assert not rung.name.startswith("cpu.")
    assert footprint.matrix(K, N, dtype, "cuda").prepared >= K * N * (4 if dtype in ("float32", "tf32") else 2)
    with using(matmul="cpu.packed"), pytest.raises(Refused):
        footprint.chosen(matmul.ladder, problem)


def test_the_allocator_keeps_every_buffer_that_was_larger_than_all_before():
    assert cached([3, 1, 2]) == 3
    assert cached([1, 2, 2, 3]) == 6
    assert cached([]) == 0


def test_a_record_has_its_operands_bytes():
    assert footprint.record_bytes([Operand((4, 5)), Operand((), "uint8"), Operand((3,), "int32")]) == 80 + 1 + 12


def test_a_batch_is_halved_until_it_fits():
    assert halved(lambda batch: 100 + 10 * batch, 64, 1000) == 64
    assert halved(lambda batch: 100 + 10 * batch, 64, 300) == 16
    with pytest.raises(ResourceError, match="a batch of 1 takes 110 bytes of a GPU's memory, and it has 100"):
        halved(lambda batch: 100 + 10 * batch, 64, 100)
