"""Starting a compiled Triton or Gluon kernel in a few microseconds.

Triton's own start looks at every argument to find the kernel compiled for such, which takes tens of microseconds. Here
the caller says by a key what that depends on: dtypes, numbers that kernels are specialised for, constants. The first
call with a key goes through Triton, the others straight to what it compiled.
"""

from collections.abc import Callable, Hashable
from typing import NamedTuple

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

ALIGNMENT = 16  # bytes, or units of a number, for whose multiples Triton compiles kernels of their own


class Box(NamedTuple):
    """What a bulk copy is told: a tensor, and the shape of the boxes it is copied in.

    The names are those of Triton's descriptors, which are made of it where a kernel is compiled.
    """

    base: object
    shape: tuple
    strides: tuple
    block_shape: list
    padding: str = "zero"


def describe(tensor, box: list) -> Box:
    """A tensor in boxes; its address and its rows' length are multiples of 16 bytes."""
    return Box(tensor, tensor.shape, tensor.stride(), box)


def triton_descriptor(box: Box):
    """As Triton's kernels take it."""
    return TensorDescriptor(*box)


def hopper_descriptor(box: Box):
    """As Gluon's do: it says how a box lies in shared memory."""
    import torch
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as HopperDescriptor

    kind = {torch.float32: gl.float32, torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}[box.base.dtype]
    layout = gl.NVMMASharedLayout.get_default_for(box.block_shape, kind)
    return HopperDescriptor(box.base, box.shape, box.strides, box.block_shape, layout)


def special(count: int) -> int:
    """What Triton's compiled kernels may know of a number: that it is 1, or a multiple of 16; or whether it is long."""
    return 1 if count == 1 else (count % ALIGNMENT == 0) + 2 * (count >= 1 << 31) + 2


_compiled: dict[Hashable, object] = {}


def start(kernel, key: Hashable, grid: tuple, arguments: tuple, descriptor: Callable | None = None, **options) -> None:
    """kernel[grid](*arguments, **options) on torch's current device and stream; the grid has two numbers.

    key: the kernel, the device and all else that decides what fits. arguments: all of them in order, constants too; the
    `Box`es among them become `descriptor`s.
    """
    compiled = _compiled.get(key)
    if compiled is None:
        described = (descriptor(x) if isinstance(x, Box) else x for x in arguments)
        _compiled[key] = kernel[grid](*described, **options)  # None in the interpreter
        return
    active = triton.runtime.driver.active
    stream = active.get_current_stream(active.get_current_device())
    function, packed = compiled.function, compiled.packed_metadata
    compiled.run(*grid, 1, stream, function, packed, None, None, None, *arguments)
