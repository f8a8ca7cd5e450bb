"""Starts the SIMT kernels on torch tensors: on the current stream of a GPU, or in numba-cuda's simulator on the CPU."""

from tilewright.ops.conv1d.operands import Epilogue, Packed, Window
from tilewright.ops.conv1d.simt import naive, tiles
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


def _scalars(window: Window, epilogue: Epilogue) -> tuple[int, int, int, bool]:
    """The last arguments of all kernels: stride, padding, dilation, relu."""
    return window.stride, window.padding, window.dilation, epilogue.activation == "relu"
