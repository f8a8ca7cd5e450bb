"""Starts the SIMT kernels on torch tensors: on the current stream of a GPU, or in numba-cuda's simulator on the CPU."""

import numpy as np

from tilewright.ops.attention.operands import AttendOptions, DeviceCache
from tilewright.ops.attention.simt import append as appending
from tilewright.ops.attention.simt import fused, unfused
from tilewright.ops.attention.simt.unfused import LANES, TILE
from tilewright.ops.attention.spans import DeviceSpans, Steps
from tilewright.ops.core.gpu.simt import launch


def attend(q, cache: DeviceCache, spans: DeviceSpans | Steps, options: AttendOptions, out, *, kernel: str) -> None:
    """Attention of q to the cache, written to out; see `ladder` for the arguments. kernel: "unfused" or "fused"."""
    if options.new is not None:
        append(*options.new, cache, [(1, 0, spans.pieces())] if isinstance(spans, Steps) else spans.all_pieces)
    tiles, result = spans.tiles(TILE), out.float().contiguous()
    scale, q = np.float32(options.scale), q.float().contiguous()
    if kernel == "fused":
        arrays = (q, cache.keys, cache.values, result, tiles)
        launch(fused.fused(cache.D), (len(tiles), cache.heads), (LANES, fused.WARPS), arrays, scale, options.causal)
    else:
        scores = q.new_empty(len(tiles) * TILE, cache.heads, spans.longest)
        block, grid = (TILE, TILE), (len(tiles), cache.heads, -(-spans.longest // TILE))
        launch(unfused.score, grid, block, (q, cache.keys, scores, tiles), scale, options.causal)
        launch(unfused.normalise, (len(tiles) * TILE, cache.heads), LANES, (scores, tiles))
        grid = (len(tiles), cache.heads, -(-cache.D // TILE))
        launch(unfused.weigh, grid, block, (scores, cache.values, result, tiles), options.causal)
    if result is not out:
        out.copy_(result)


def append(k, v, cache: DeviceCache, tables) -> None:
    """Append rows as the tables [(positions of a piece, 0, pieces)] say."""
    for _, _, pieces in tables:
        arrays = (k.float().contiguous(), v.float().contiguous(), cache.keys, cache.values, pieces)
        launch(appending.append, (len(pieces), cache.heads), appending.THREADS, arrays)
