"""Rows of any length, a chunk of one at a time."""

import triton
import triton.language as tl

CHUNK, WARPS = 4096, 8  # 16 numbers a thread


@triton.jit
def chunks(x, weight, bias, out, eps, C: tl.constexpr, CHUNK: tl.constexpr):
    """out (M, C) = layernorm of x's rows, a program a row.

    Three passes, mean, variance and result, the later two from a cache where that holds the rows under way. Loses to
    rows in registers wherever those fit.
    """
    share: tl.constexpr = 1 / C
    row, columns = tl.program_id(0).to(tl.int64) * C, tl.arange(0, CHUNK)
    totals = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, C, CHUNK):
        here = start + columns
        totals += tl.load(x + row + here, mask=here < C, other=0.0).to(tl.float32)
    mean = tl.sum(totals, 0) * share
    squares = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, C, CHUNK):
        here = start + columns
        number = tl.load(x + row + here, mask=here < C, other=0.0).to(tl.float32)
        apart = tl.where(here < C, number - mean, 0.0)
        squares += apart * apart
    factor = tl.rsqrt(tl.sum(squares, 0) * share + eps)
    for start in range(0, C, CHUNK):
        here = start + columns
        number = tl.load(x + row + here, mask=here < C, other=0.0).to(tl.float32)
        scale = tl.load(weight + here, mask=here < C, other=0.0).to(tl.float32)
        shift = tl.load(bias + here, mask=here < C, other=0.0).to(tl.float32)
        result = (number - mean) * factor * scale + shift
        tl.store(out + row + here, result.to(out.dtype.element_ty), mask=here < C)


def run(x, weight, bias, eps: float, out) -> None:
    """The rung's run function."""
    M, C = x.shape
    chunks[(M,)](x, weight, bias, out, eps, C, CHUNK, num_warps=WARPS)
