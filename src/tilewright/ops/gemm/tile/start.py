"""Starting a compiled Triton or Gluon kernel in a few microseconds.

Triton's own launch inspects every argument to find the compiled kernel, which takes tens of microseconds. Here the
caller passes a key of everything that selects it: dtypes, sizes that kernels are specialised for, constants. The first
call with a key goes through Triton, later calls start the compiled kernel directly.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

ALIGNMENT = 16  # Triton specialises kernels for addresses (in bytes) and integers that are multiples of 16


class Box(NamedTuple):
    """A tensor and the shape of the boxes that bulk copies load or store; fields as in Triton's TensorDescriptor."""

    base: object
    shape: tuple
    strides: tuple
    block_shape: list
    padding: str = "zero"


def describe(tensor, box: list) -> Box:
    """A tensor in boxes; its address and the length of its rows are multiples of 16 bytes."""
    return Box(tensor, tensor.shape, tensor.stride(), box)


def triton_descriptor(box: Box):
    """The descriptor for Triton's kernels."""
    return TensorDescriptor(*box)


def hopper_descriptor(box: Box):
    """The descriptor for Gluon's kernels, with the layout of a box in shared memory."""
    import torch
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as HopperDescriptor

    kind = {torch.float32: gl.float32, torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}[box.base.dtype]
    layout = gl.NVMMASharedLayout.get_default_for(box.block_shape, kind)
    return HopperDescriptor(box.base, box.shape, box.strides, box.block_shape, layout)


def special(count: int) -> int:
    """The class of an integer for which Triton compiles a kernel: 1, or by multiple of 16 and 32 or 64 bits."""
    return 1 if count == 1 else (count % ALIGNMENT == 0) + 2 * (count >= 1 << 31) + 2


def forms(tensors: Iterable, sizes: Iterable[int] = ()) -> tuple:
    """The part of a key that says which kernel Triton compiles for these tensors and sizes."""
    words = tuple((x.dtype, x.data_ptr() % ALIGNMENT == 0) for x in tensors)
    return (*words, *map(special, sizes))


_compiled: dict[Hashable, object] = {}


def start(kernel, key: Hashable, grid: tuple, arguments: tuple, descriptor: Callable | None = None, **options) -> None:
    """kernel[grid](*arguments, **options) on torch's current device and stream; grid: (x, y).

    key: the kernel, the device and everything else that selects the compiled kernel, except launch_pdl, see `early`.
    arguments: all in order, constants too. descriptor: makes the descriptor of each `Box` among them.
    """
    key = key, "launch_pdl" in options
    compiled = _compiled.get(key)
    if compiled is None:
        described = (descriptor(x) if isinstance(x, Box) else x for x in arguments)
        _compiled[key] = kernel[grid](*described, **options)  # None in the interpreter
        return
    active = triton.runtime.driver.active
    stream = active.get_current_stream(active.get_current_device())
    function, packed = compiled.function, compiled.packed_metadata
    compiled.run(*grid, 1, stream, function, packed, None, None, None, *arguments)
