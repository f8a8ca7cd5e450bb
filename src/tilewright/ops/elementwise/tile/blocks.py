"""An elementwise function in Triton: out[i] = function(x[i]), in float32, by the polynomials of `functions`.

Each element is read once and written once. Memory bandwidth is the limit, as long as the function takes less time than
its 8 bytes; gelu with float32 results does not. It is the only tile rung.
"""

import triton
import triton.language as tl

from tilewright.ops.elementwise.tile.functions import apply

BLOCK, WARPS = 1024, 4  # 8 elements per thread: two loads of 16 bytes in flight


@triton.jit(do_not_specialize=["N"])
def blocks(x, out, N, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    """One program per BLOCK elements. x, out: pointers to N contiguous elements of any float dtype. FUNCTION: a name of
    `reference.FUNCTIONS`."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = first + tl.arange(0, BLOCK)
    if first + BLOCK <= N:  # without a mask, because its end may lie inside of 16 bytes
        values = tl.load(x + offsets).to(tl.float32)
        tl.store(out + offsets, apply(values, out, FUNCTION).to(out.dtype.element_ty))
    else:
        values = tl.load(x + offsets, mask=offsets < N, other=0.0).to(tl.float32)
        tl.store(out + offsets, apply(values, out, FUNCTION).to(out.dtype.element_ty), mask=offsets < N)


def run(function: str, x, out) -> None:
    """Launch `blocks` on two tensors of one shape."""
    N = x.numel()
    blocks[(-(-N // BLOCK),)](x, out, N, function, BLOCK, num_warps=WARPS, enable_fp_fusion=False)
