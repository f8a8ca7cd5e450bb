"""Starts the SIMT rungs on torch tensors: on the current stream of a GPU, or in numba-cuda's simulator on the CPU."""

from functools import partial

from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.conv_transpose2d.simt import naive
from tilewright.ops.core.gpu.simt import launch

KERNELS = {
    "gather_tested": naive.gather_tested,
    "gather": naive.gather,
    "coalesced": partial(naive.gather, transposed=True),
}


def transpose(weights, rows: Axis, columns: Axis, dtype: str):
    """weights (KH, KW, O, C) as float32 (KH, KW, C, O)."""
    return weights.float().permute(0, 1, 3, 2).contiguous()


def convolve(x, weights: Packed, out, epilogue: Epilogue, *, kernel: str) -> None:
    """out (B, OH, OW, O) from x (B, H, W, C), contiguous float32 tensors on one device. kernel: a key of KERNELS."""
    tensors = (x, weights.data, epilogue.bias.float(), out)
    window = weights.rows.stride, weights.columns.stride, weights.rows.first, weights.columns.first
    launch(KERNELS[kernel](epilogue.activation), -(-out.numel() // naive.THREADS), naive.THREADS, tensors, *window)
