"""What the tests of GPU kernels share: where they run, and what Triton's interpreter does otherwise than a GPU."""

import os

import numpy as np

ON_GPU = os.environ.get("TILEWRIGHT_GPU") == "1"  # `make test-gpu`; else kernels run as Python
PLACE = "cuda" if ON_GPU else "cpu"


def widen_bfloat16(monkeypatch) -> None:
    """The interpreter keeps bfloat16 as 16-bit integers, and multiplies those: let it widen them first.

    Nothing to do on a GPU, or without Triton.
    """
    if ON_GPU:
        return
    try:
        from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
    except ImportError:
        return
    multiply = InterpreterBuilder.create_dot

    def widened(handle):
        if str(handle.dtype) != "bf16":
            return handle
        wide = (handle.data.astype(np.uint32) << 16).view(np.float32)
        return TensorHandle(wide, type(handle.dtype)("fp32"))

    def create_dot(self, a, b, *rest):
        return multiply(self, widened(a), widened(b), *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


def round_fma_once(monkeypatch) -> None:
    """Until Triton 3.8 the interpreter rounds the product of a fused multiply-add, too: let it use float64.

    Nothing to do on a GPU, or without Triton.
    """
    if ON_GPU:
        return
    try:
        from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
    except ImportError:
        return

    def create_fma(self, x, y, z):
        wide = x.data.astype(np.float64) * y.data + z.data
        return TensorHandle(wide.astype(z.data.dtype), z.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_fma", create_fma)
