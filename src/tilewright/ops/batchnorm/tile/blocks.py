"""batchnorm in Triton: out[i, c] = activation((x[i, c] - mean[c]) / sqrt(variance[c] + eps) * gamma[c] + beta[c]).

One program per block of rows and channels. It computes the scale and shift of its channels in float64, once for all its
rows, which costs less than loading them. Memory bandwidth is the limit: each element is read once and written once. It
is slow where channels are few and no power of two: lanes after them are idle. It is the only tile rung.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tilewright.ops.core.gpu.blocks import RowBlock
from tilewright.ops.gemm.tile.epilogue import activate

BLOCK, WARPS = 4096, 4  # 32 elements per thread
WIDEST = 256  # channels of a block


class Channels(NamedTuple):
    """Pointers to (C,) each, of any float dtype."""

    gamma: Any
    beta: Any
    mean: Any
    variance: Any


@triton.jit(do_not_specialize=["M"])
def blocks(x, channels, out, M, eps, block: tl.constexpr, ACTIVATION: tl.constexpr):
    """x, out: pointers to (M, C) of any float dtype, contiguous. channels: `Channels`. block: a `RowBlock`."""
    C: tl.constexpr = block.C
    BM: tl.constexpr = block.BM
    BC: tl.constexpr = block.BC
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BC + tl.arange(0, BC)
    valid = columns < C
    variance = tl.load(channels.variance + columns, mask=valid, other=1.0).to(tl.float64) + eps
    scale = tl.load(channels.gamma + columns, mask=valid, other=0.0).to(tl.float64) / tl.sqrt(variance)
    shift = tl.load(channels.beta + columns, mask=valid, other=0.0).to(tl.float64)
    shift -= tl.load(channels.mean + columns, mask=valid, other=0.0).to(tl.float64) * scale
    inside = (rows < M)[:, None] & valid[None, :]
    offsets = rows.to(tl.int64)[:, None] * C + columns[None, :]
    values = tl.load(x + offsets, mask=inside, other=0.0).to(tl.float32)
    result = activate(values * scale.to(tl.float32)[None, :] + shift.to(tl.float32)[None, :], ACTIVATION)
    tl.store(out + offsets, result.to(out.dtype.element_ty), mask=inside)


def run(x, channels, eps: float, activation, out) -> None:
    """Launch `blocks` on x and out (M, C). channels: gamma, beta, mean, variance."""
    M, C = x.shape
    BC = min(triton.next_power_of_2(C), WIDEST)
    block = RowBlock(C, BLOCK // BC, BC)
    grid = (-(-M // block.BM), -(-C // BC))
    blocks[grid](x, Channels(*channels), out, M, eps, block, activation, num_warps=WARPS)
