"""Starting a kernel that has run before and takes hundreds of numbers: its parameters are laid out here.

numba-cuda looks at the type of each number at each launch, 4 us a number (H200's host, November 2026): half a
millisecond for the weights of a kernel of 5 x 5 x 5, which a GPU convolves 128 x 128 x 128 with in 30 us.
"""

from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numba import cuda

from tilewright.errors import InternalError
from tilewright.ops._simt import SIMULATED, launch

RELAUNCH = False


@dataclass(frozen=True, eq=False)
class Numbers:
    """float32 weights as a kernel's parameters. values: for numba. memory: for the driver, with a pointer to each."""

    values: tuple
    memory: np.ndarray = field(init=False)
    pointers: np.ndarray = field(init=False)

    def __post_init__(self):
        memory = np.array(self.values, np.float32)
        object.__setattr__(self, "memory", memory)
        object.__setattr__(self, "pointers", _pointers(memory))


def _pointers(memory: np.ndarray) -> np.ndarray:
    """The address of each number."""
    return memory.ctypes.data + memory.itemsize * np.arange(memory.size)


def start(kernel, grid: tuple[int, int], threads: int, tensors: tuple, weights: Numbers, integers: tuple, fill) -> None:
    """kernel[grid, threads](*tensors, weights, *integers, fill) on the current stream; integers: numbers and tuples."""
    first = tensors[0]
    if not RELAUNCH or SIMULATED or not first.is_cuda or not kernel.overloads:
        launch(kernel, grid, threads, tensors, weights.values, *integers, fill)
        return
    import torch
    from cuda.bindings import driver

    with torch.cuda.device(first.device):
        before = np.array([word for tensor in tensors for word in _words(tensor)])
        after = np.array([word for entry in integers for word in (entry if isinstance(entry, tuple) else (entry,))])
        last = np.array([fill])
        parts = [_pointers(before), weights.pointers, _pointers(after), _pointers(last)]
        parameters, stream = np.concatenate(parts), torch.cuda.current_stream().cuda_stream
        handle = _handle(kernel, first.device.index)
        (status,) = driver.cuLaunchKernel(handle, *grid, 1, threads, 1, 1, 0, stream, parameters.ctypes.data, 0)
    if status:
        raise InternalError(f"conv3d: a kernel did not start (CUDA error {int(status)})")


def _words(tensor) -> list[int]:
    """A contiguous tensor as numba hands an array over: owner, parent, count, bytes of one, address, shape, strides."""
    size = tensor.element_size()
    return [0, 0, tensor.numel(), size, tensor.data_ptr(), *tensor.shape, *(size * step for step in tensor.stride())]


@cache
def _handle(kernel, device: int):
    """The driver's handle of a kernel that numba has compiled, once, for one set of types."""
    from cuda.bindings import driver

    (compiled,) = kernel.overloads.values()
    with cuda.gpus[device]:
        return driver.CUfunction(int(compiled._codelibrary.get_cufunc().handle))
