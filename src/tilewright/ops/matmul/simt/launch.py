"""Starts the SIMT kernels on torch tensors: on the current stream of a GPU, or in numba-cuda's simulator on the CPU."""

from tilewright.ops.core.gpu.simt import launch
from tilewright.ops.gemm.operands import Epilogue, Packed, Rows
from tilewright.ops.matmul.simt import blocks, naive, narrow, shared, warps

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


def transpose(b, rung: str) -> Packed:
    """b (K, N) float32 as (N, K): a warp's threads read adjacent numbers of a column."""
    K, N = b.shape
    return Packed(rung, K, N, "float32", b.T.float().contiguous())


def multiply_narrow(rows: Rows, weights: Packed, out, epilogue: Epilogue) -> None:
    """As `multiply`, for few columns."""
    arrays = (rows.plain().float().contiguous(), weights.data, out, epilogue.bias.float(), epilogue.residual.float())
    create = narrow.narrow(epilogue.activation, weights.N)
    launch(create, -(-len(out) // narrow.TILE), narrow.THREADS, arrays)


def multiply(name: str, rows: Rows, weights: Packed, out, epilogue: Epilogue) -> None:
    """out (M, N) = activation(rows @ weights + residual + bias); contiguous float32 tensors on one device."""
    a, extents = rows.plain().float().contiguous(), ()
    create, threads, tile = KERNELS[name]
    if weights.rung.split(".")[1] in ("vectors", "warps", "buffered"):
        extents = tuple(weights.data.shape)
        a = _widened(a, extents[0])
    arrays = (a, weights.data, out, epilogue.bias.float(), epilogue.residual.float())
    grid = (-(-out.shape[0] // tile), -(-out.shape[1] // tile))
    launch(create(epilogue.activation), grid, threads, arrays, *extents)


def _widened(a, depth: int):
    """a with zeros up to `depth` columns."""
    if a.shape[1] == depth:
        return a
    wide = a.new_zeros(len(a), depth)
    wide[:, : a.shape[1]] = a
    return wide
