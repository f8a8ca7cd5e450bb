"""Starts the SIMT kernels on torch tensors: on the current stream of a GPU, or in numba-cuda's simulator on the CPU."""

from tilewright.ops.conv1d.operands import Epilogue, Packed, Window
from tilewright.ops.conv1d.simt import naive, tiles
from tilewright.ops.core.gpu.simt import launch


def convolve(name: str, x, weights: Packed, out, window: Window, epilogue: Epilogue) -> None:
    """The rungs' run function; out is contiguous."""
    x = x.float().contiguous()
    B, O, P = len(x), weights.O, window.positions(x.shape[2], weights.K)
    options = (window.stride, window.padding, window.dilation, epilogue.activation == "relu")
    if name == "fused" and epilogue.pool:
        grid = (-(-B // tiles.GROUPS), -(-O // tiles.FILTERS))
        launch(tiles.fused, grid, tiles.THREADS, (x, weights.data, epilogue.bias, out), *options)
        return
    y = x.new_empty((B, O, P)) if epilogue.pool else out
    arrays = (x, weights.data, epilogue.bias, y)
    if name == "naive":
        launch(naive.naive, -(-y.numel() // naive.THREADS), naive.THREADS, arrays, *options)
    elif name == "tiles":
        grid = (-(-B * P // tiles.TILE), -(-O // tiles.TILE))
        launch(tiles.tiles, grid, (tiles.TILE, tiles.TILE), arrays, *options)
    else:
        grid = (-(-B * P // tiles.POSITIONS), -(-O // tiles.FILTERS))
        launch(tiles.registers, grid, tiles.THREADS, arrays, *options)
    if epilogue.pool:
        launch(naive.maximum, -(-out.numel() // naive.THREADS), naive.THREADS, (y, out))
