"""Which checks a public function uses: chosen by the memory of its first argument."""

import numpy as np
import pytest
import torch

from tilewright.errors import UsageError
from tilewright.ops.core.arguments import DEVICE, HOST, arguments_of
from tilewright.ops.core.gpu.tensors import gpu_kernels_on_the_cpu, overlaps
from tilewright.ops.softmax import softmax


class Foreign:
    """Another library's array, with the methods that `arguments_of` calls."""

    def __init__(self, kind: int):
        self.kind = kind

    def __dlpack__(self, **_):
        raise BufferError("this test has no GPU")

    def __dlpack_device__(self):
        return self.kind, 0


def test_arrays_of_other_libraries_run_where_their_memory_is():
    assert arguments_of(Foreign(1)) is HOST  # kDLCPU
    assert arguments_of(Foreign(2)) is DEVICE  # kDLCUDA, as CuPy's and JAX's
    assert arguments_of(np.ones(3)) is HOST and arguments_of([1.0]) is HOST and arguments_of(None) is HOST


def test_tensors_on_the_cpu_run_gpu_kernels_only_in_the_simulation():
    torch = pytest.importorskip("torch")
    x = torch.ones(3)
    assert arguments_of(x) is HOST
    with gpu_kernels_on_the_cpu():
        assert arguments_of(x) is DEVICE and arguments_of(x.numpy()) is HOST
    assert arguments_of(x) is HOST


def test_devices_are_not_mixed():
    with pytest.raises(UsageError, match="softmax: x is int32"):
        softmax(np.ones((2, 3), np.int32))
    with pytest.raises(UsageError, match="weight is on a GPU"):
        HOST.take("layernorm", "weight", Foreign(2))


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [(np.s_[:10], np.s_[5:], True), (np.s_[:5], np.s_[5:], False), (np.s_[::2], np.s_[5:9:2], True),
     (np.s_[:8:2], np.s_[8::2], False)],
)  # fmt: skip
def test_views_of_one_array_of_another_library_overlap(first, second, shared):
    """torch gives each view that it imports through DLPack a storage of its own."""
    memory = np.zeros(16, np.float32)
    x, y = torch.from_dlpack(memory[first]), torch.from_dlpack(memory[second])
    assert overlaps(x, y) is overlaps(y, x) is shared
    assert overlaps(x, x) and not overlaps(x, torch.zeros(10))
