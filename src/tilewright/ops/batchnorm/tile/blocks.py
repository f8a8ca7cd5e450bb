"""One program per block of rows and channels."""

import triton
import triton.language as tl

from tilewright.ops.core.gpu.blocks import RowBlock
from tilewright.ops.gemm.tile.epilogue import activate

BLOCK, WARPS = 4096, 4  # 32 elements per thread
WIDEST = 256  # channels of a block


@triton.jit(do_not_specialize=["M"])
def blocks(x, channels, out, M, eps, block: tl.constexpr, ACTIVATION: tl.constexpr):
    """out (M, C) = ACTIVATION(x * scale + shift); channels: (gamma, beta, mean, variance).

    A program computes scale and shift in float64, once for all rows of its block. That costs less than loading them.
    Loses where channels are few and no power of two: lanes beyond them are idle.
    """
    gamma, beta, mean, variance = channels
    C: tl.constexpr = block.C
    BM: tl.constexpr = block.BM
    BC: tl.constexpr = block.BC
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BC + tl.arange(0, BC)
    real = columns < C
    spread = tl.load(variance + columns, mask=real, other=1.0).to(tl.float64) + eps
    scale = tl.load(gamma + columns, mask=real, other=0.0).to(tl.float64) / tl.sqrt(spread)
    shift = tl.load(beta + columns, mask=real, other=0.0).to(tl.float64)
    shift -= tl.load(mean + columns, mask=real, other=0.0).to(tl.float64) * scale
    inside = (rows < M)[:, None] & real[None, :]
    at = rows.to(tl.int64)[:, None] * C + columns[None, :]
    number = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    result = activate(number * scale.to(tl.float32)[None, :] + shift.to(tl.float32)[None, :], ACTIVATION)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


def run(x, channels, eps: float, activation, out, block: int = BLOCK, warps: int = WARPS) -> None:
    """The rung's run function; block, warps: other than the rung's own, for measurements."""
    M, C = x.shape
    columns = min(triton.next_power_of_2(C), WIDEST)
    grid = (-(-M // (block // columns)), -(-C // columns))
    blocks[grid](x, channels, out, M, eps, RowBlock(C, block // columns, columns), activation, num_warps=warps)
