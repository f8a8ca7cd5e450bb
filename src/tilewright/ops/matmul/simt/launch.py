"""Starts the SIMT kernels on torch tensors: on the current stream of a GPU, or in numba-cuda's simulator on the CPU."""

from contextlib import nullcontext

from numba import config, cuda

from tilewright.ops.matmul.operands import Epilogue, Packed, Rows
from tilewright.ops.matmul.simt import blocks, naive, shared, warps

config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # a small batch is no mistake

# name -> (kernel for an activation, threads of a block, rows and columns of out a block has)
KERNELS = {
    "memory": (naive.memory, (naive.THREADS, naive.THREADS), naive.THREADS),
    "register": (naive.register, (naive.THREADS, naive.THREADS), naive.THREADS),
    "coalesced": (naive.coalesced, (naive.THREADS, naive.THREADS), naive.THREADS),
    "shared8": (shared.shared, (8, 8), 8),
    "shared16": (shared.shared, (16, 16), 16),
    "shared32": (shared.shared, (32, 32), 32),
    "unrolled": (shared.unrolled, (shared.LARGEST, shared.LARGEST), shared.LARGEST),
    "strip": (blocks.strip, (512,), blocks.STRIP_TILE),
    "outer": (blocks.outer, (64,), blocks.TILE),
    "vectors": (warps.vectors, (warps.THREADS,), warps.TILE),
    "warps": (warps.warps, (warps.THREADS,), warps.TILE),
    "buffered": (warps.buffered, (warps.THREADS,), warps.TILE),
}


def pad_tiles(b, rung: str) -> Packed:
    """b (K, N) float32 with zeros up to whole tiles: kernels load 16 bytes at a time and never ask where b ends."""
    K, N = b.shape
    data = b.new_zeros(-(-K // warps.DEPTH) * warps.DEPTH, -(-N // warps.TILE) * warps.TILE)
    data[:K, :N] = b
    return Packed(rung, K, N, "float32", data)


def multiply(name: str, rows: Rows, weights: Packed, out, epilogue: Epilogue) -> None:
    """out (M, N) = activation(rows @ weights + residual + bias); contiguous float32 tensors on one device."""
    a, extents = rows.plain().float().contiguous(), ()
    if weights.rung.split(".")[1] in ("vectors", "warps", "buffered"):
        extents = tuple(weights.data.shape)
        a = _widened(a, extents[0])
    create, threads, tile = KERNELS[name]
    arrays = (a, weights.data, out, epilogue.bias.float(), epilogue.residual.float())
    grid = tuple(-(-extent // tile) for extent in out.shape)
    with cuda.gpus[out.device.index] if out.is_cuda else nullcontext():
        kernel = create(epilogue.activation)
        kernel[grid, threads, _stream(out)](*map(_view, arrays), *extents)


def _widened(a, depth: int):
    """a with zeros up to `depth` columns."""
    if a.shape[1] == depth:
        return a
    wide = a.new_zeros(len(a), depth)
    wide[:, : a.shape[1]] = a
    return wide


def _view(tensor):
    """The tensor's memory as numba-cuda takes it."""
    return cuda.as_cuda_array(tensor) if tensor.is_cuda else tensor.numpy()


def _stream(tensor):
    """The stream that torch would use now."""
    if not tensor.is_cuda:
        return 0
    import torch

    return cuda.external_stream(torch.cuda.current_stream(tensor.device).cuda_stream)
