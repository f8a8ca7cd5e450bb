"""Starts the SIMT kernels on torch tensors: on the current stream of a GPU, or in numba-cuda's simulator on the CPU."""

from tilewright.ops.conv1d.operands import Epilogue, Packed, Window
from tilewright.ops.conv1d.simt import naive, tiles
from tilewright.ops.conv1d.simt.form import BEYOND, COLUMNS, DEEPEST, QUAD, THREADS, form_for
from tilewright.ops.conv1d.simt.rows import Job, rows
from tilewright.ops.core.gpu.simt import launch


def convolve(x, weights: Packed, out, window: Window, epilogue: Epilogue, *, kernel: str) -> None:
    """x (B, C, L) convolved into contiguous out; with pooling, a second kernel reduces a buffer of all positions.

    kernel: "naive", "tiles" or "registers".
    """
    x = x.float().contiguous()
    B, O, P = len(x), weights.O, window.positions(x.shape[2], weights.K)
    y = x.new_empty((B, O, P)) if epilogue.pool else out
    grid, threads = {
        "naive": (-(-y.numel() // naive.THREADS), naive.THREADS),
        "tiles": ((-(-B * P // tiles.TILE), -(-O // tiles.TILE)), (tiles.TILE, tiles.TILE)),
        "registers": ((-(-B * P // tiles.POSITIONS), -(-O // tiles.FILTERS)), tiles.THREADS),
    }[kernel]
    function = naive.naive if kernel == "naive" else getattr(tiles, kernel)
    launch(function, grid, threads, (x, weights.data, epilogue.bias, y), *_scalars(window, epilogue))
    if epilogue.pool:
        launch(naive.maximum, -(-out.numel() // naive.THREADS), naive.THREADS, (y, out))


def convolve_fused(x, weights: Packed, out, window: Window, epilogue: Epilogue) -> None:
    """x (B, C, L) convolved and pooled in one kernel; without pooling, as `convolve` by `registers`."""
    if not epilogue.pool:
        convolve(x, weights, out, window, epilogue, kernel="registers")
        return
    x = x.float().contiguous()
    grid = (-(-len(x) // tiles.GROUPS), -(-weights.O // tiles.FILTERS))
    launch(tiles.fused, grid, tiles.THREADS, (x, weights.data, epilogue.bias, out), *_scalars(window, epilogue))


def lay_out(weight, rung: str, dtype: str) -> Packed:
    """weight (O, C, K) as float32 (C * K, O), padded with zeros to whole steps and blocks of `rows`."""
    O, C, K = weight.shape
    data = weight.new_zeros(-(-C // DEEPEST) * DEEPEST * K + BEYOND, -(-O // COLUMNS) * COLUMNS).float()
    data[: C * K, :O] = weight.reshape(O, C * K).T
    return Packed(rung, O, C, K, "float32", data)


def convolve_rows(
    x, weights: Packed, out, window: Window, epilogue: Epilogue, *, filters: int, rows_per_block: int
) -> None:
    """x (B, C, L) convolved into contiguous out by `rows`, with weights from `lay_out`.

    filters: per thread, a multiple of 4. rows_per_block: pieces of samples per block, 8, 16 or 32. Raises Refused for
    another value, and if a block would have more than 128 filters.
    """
    x = x.float().contiguous()
    B, P = len(x), window.positions(x.shape[2], weights.K)
    whole_quads = x.data_ptr() % (QUAD * x.element_size()) == 0
    form = form_for(x.shape[2], weights.K, window, whole_quads, filters, rows_per_block)
    pieces = -(-P // form.positions)
    job = Job(
        pieces, P, window.stride, window.padding, window.dilation, epilogue.activation == "relu", bool(epilogue.pool)
    )
    partial = epilogue.pool and pieces > 1
    y = x.new_empty((B, weights.O, pieces)) if partial else out
    grid = (-(-B * pieces // form.rows), -(-weights.O // form.width))
    steps = -(-weights.C * form.split // form.depth) * form.depth
    launch(rows(form), grid, THREADS, (x, weights.data, epilogue.bias, y), job, steps)
    if partial:
        launch(naive.maximum, -(-out.numel() // naive.THREADS), naive.THREADS, (y, out))


def _scalars(window: Window, epilogue: Epilogue) -> tuple[int, int, int, bool]:
    """The last arguments of all kernels: stride, padding, dilation, relu."""
    return window.stride, window.padding, window.dilation, epilogue.activation == "relu"
