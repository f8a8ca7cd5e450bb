"""A block of numbers a program, each read and written once."""

import triton
import triton.language as tl

from tilewright.ops.elementwise.tile.functions import apply

BLOCK, WARPS = 1024, 4  # 8 numbers a thread: two loads of 16 bytes on their way


@triton.jit(do_not_specialize=["N"])
def blocks(x, out, N, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    """out[i] = FUNCTION(x[i]), N numbers; any float dtype in and out, float32 between.

    Loses to nothing but the memory, as long as a function takes fewer operations than its eight bytes take time.
    """
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = first + tl.arange(0, BLOCK)
    if first + BLOCK <= N:  # without a mask, whose edge may lie inside 16 bytes
        number = tl.load(x + at).to(tl.float32)
        tl.store(out + at, apply(number, out, FUNCTION).to(out.dtype.element_ty))
    else:
        number = tl.load(x + at, mask=at < N, other=0.0).to(tl.float32)
        tl.store(out + at, apply(number, out, FUNCTION).to(out.dtype.element_ty), mask=at < N)


def run(function: str, x, out, block: int = BLOCK, warps: int = WARPS) -> None:
    """The rung's run function; block, warps: other than the rung's own, for measurements."""
    N = x.numel()
    blocks[(-(-N // block),)](x, out, N, function, block, num_warps=warps, enable_fp_fusion=False)
