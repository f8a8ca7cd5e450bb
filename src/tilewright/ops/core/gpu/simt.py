"""Starting numba-cuda's kernels on torch tensors: on the current stream of a GPU, or in the simulator on the CPU."""

from contextlib import nullcontext

from numba import config, cuda

from tilewright.ops.core.gpu.kernel_cache import GpuKernelCache

config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # small batches are expected
SIMULATED = bool(getattr(config, "ENABLE_CUDASIM", False))


def kernel(function):
    """A kernel, compiled or read from the cache when it is first called."""
    return _kernel(function, {})


def kernel_of(registers: int):
    """A decorator: a kernel with at most this number of registers per thread."""
    return lambda function: _kernel(function, {"max_registers": registers})


def _kernel(function, options: dict):
    if SIMULATED:
        return cuda.jit(function, fastmath=False)
    dispatcher = cuda.jit(fastmath=False, **options)(function)
    dispatcher._cache = GpuKernelCache(function, dispatcher.targetoptions)
    return dispatcher


def inline(function):
    """A function that kernels call."""
    return cuda.jit(function, device=True, fastmath=False)


def launch(kernel, grid, threads, tensors: tuple, *scalars, shared: int = 0) -> None:
    """Run kernel[grid, threads](*tensors, *scalars) on the device and the current stream of the first tensor.

    grid, threads: an integer or a tuple. shared: bytes of dynamic shared memory. Does nothing for an empty grid.
    """
    if 0 in (grid if isinstance(grid, tuple) else (grid,)):
        return
    first, *_ = tensors
    with cuda.gpus[first.device.index] if first.is_cuda else nullcontext():
        kernel[grid, threads, _stream(first), shared](*map(view, tensors), *scalars)


def view(tensor):
    """The tensor's memory as an array of numba-cuda; bfloat16, which numba-cuda does not know, as uint16."""
    import torch

    plain = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
    return cuda.as_cuda_array(plain, sync=False) if tensor.is_cuda else plain.numpy()


def _stream(tensor):
    """Torch's current stream."""
    if not tensor.is_cuda:
        return 0
    import torch

    return cuda.external_stream(torch.cuda.current_stream(tensor.device).cuda_stream)
