"""Starts the SIMT kernels on torch tensors: on the current stream of a GPU, or in numba-cuda's simulator on the CPU."""

from tilewright.ops.core.gpu.simt import launch
from tilewright.ops.gemm.operands import Epilogue, Packed, Rows
from tilewright.ops.matmul.simt import blocks, naive, narrow, shared, warps

# name -> (kernel for an activation, threads per block, rows and columns of out per block)
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
}
PADDED = {"vectors": warps.vectors, "warps": warps.warps, "buffered": warps.buffered}  # for padded operands


def pad_tiles(b, rung: str, dtype: str) -> Packed:
    """b (K, N) as float32, padded with zeros to whole tiles: kernels load 16 bytes without checking for b's end."""
    K, N = b.shape
    data = b.new_zeros(-(-K // warps.DEPTH) * warps.DEPTH, -(-N // warps.TILE) * warps.TILE)
    data[:K, :N] = b
    return Packed(rung, K, N, "float32", data)


def transpose(b, rung: str, dtype: str) -> Packed:
    """b (K, N) as float32 (N, K): the threads of a warp read adjacent elements of a column."""
    K, N = b.shape
    return Packed(rung, K, N, "float32", b.T.float().contiguous())


def multiply_narrow(rows: Rows, weights: Packed, out, epilogue: Epilogue) -> None:
    """As `multiply`, for few columns."""
    arrays = (rows.plain().float().contiguous(), weights.data, out, epilogue.bias.float(), epilogue.residual.float())
    create = narrow.narrow(epilogue.activation, weights.N)
    launch(create, -(-len(out) // narrow.TILE), narrow.THREADS, arrays)


def multiply(rows: Rows, weights: Packed, out, epilogue: Epilogue, *, kernel: str) -> None:
    """out (M, N) = activation(rows @ weights + residual + bias); contiguous float32 tensors on one device.

    kernel: a key of KERNELS.
    """
    create, threads, tile = KERNELS[kernel]
    a = rows.plain().float().contiguous()
    arrays = (a, weights.data, out, epilogue.bias.float(), epilogue.residual.float())
    launch(create(epilogue.activation), _grid(out, tile), threads, arrays)


def multiply_padded(rows: Rows, weights: Packed, out, epilogue: Epilogue, *, kernel: str) -> None:
    """As `multiply`, by a kernel of PADDED, with weights from `pad_tiles`."""
    depth, width = weights.data.shape
    a = _padded(rows.plain().float().contiguous(), depth)
    arrays = (a, weights.data, out, epilogue.bias.float(), epilogue.residual.float())
    launch(PADDED[kernel](epilogue.activation), _grid(out, warps.TILE), (warps.THREADS,), arrays, depth, width)


def _grid(out, tile: int) -> tuple[int, int]:
    """Blocks of tile x tile elements down and across out."""
    return -(-out.shape[0] // tile), -(-out.shape[1] // tile)


def _padded(a, depth: int):
    """a padded with zeros to `depth` columns."""
    if a.shape[1] == depth:
        return a
    wide = a.new_zeros(len(a), depth)
    wide[:, : a.shape[1]] = a
    return wide
