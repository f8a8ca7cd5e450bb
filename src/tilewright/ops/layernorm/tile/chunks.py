"""layernorm in chunks: out[i, c] = (x[i, c] - mean[i]) / sqrt(variance[i] + eps) * weight[c] + bias[c].

Rows may have any length. Three passes over a row: mean, variance, result. Memory bandwidth is the limit; the second and
third read from a cache where that holds the rows in flight. It is the lowest tile rung. It is slower than `registers`
wherever a row fits in registers.
"""

import triton
import triton.language as tl

CHUNK, WARPS = 4096, 8  # 16 elements per thread


@triton.jit
def chunks(x, weight, bias, out, eps, C: tl.constexpr, CHUNK: tl.constexpr):
    """One program per row. x, out: pointers to (M, C), weight, bias: to (C,), contiguous, each of any float dtype.
    CHUNK: elements of a row at a time, a power of two."""
    inverse_C: tl.constexpr = 1 / C
    row, columns = tl.program_id(0).to(tl.int64) * C, tl.arange(0, CHUNK)
    totals = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, C, CHUNK):
        offsets = start + columns
        totals += tl.load(x + row + offsets, mask=offsets < C, other=0.0).to(tl.float32)
    mean = tl.sum(totals, 0) * inverse_C
    squares = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, C, CHUNK):
        offsets = start + columns
        values = tl.load(x + row + offsets, mask=offsets < C, other=0.0).to(tl.float32)
        deviation = tl.where(offsets < C, values - mean, 0.0)
        squares += deviation * deviation
    factor = tl.rsqrt(tl.sum(squares, 0) * inverse_C + eps)
    for start in range(0, C, CHUNK):
        offsets = start + columns
        values = tl.load(x + row + offsets, mask=offsets < C, other=0.0).to(tl.float32)
        scale = tl.load(weight + offsets, mask=offsets < C, other=0.0).to(tl.float32)
        shift = tl.load(bias + offsets, mask=offsets < C, other=0.0).to(tl.float32)
        result = (values - mean) * factor * scale + shift
        tl.store(out + row + offsets, result.to(out.dtype.element_ty), mask=offsets < C)


def run(x, weight, bias, eps: float, out) -> None:
    """Launch `chunks` on x and out (M, C)."""
    M, C = x.shape
    chunks[(M,)](x, weight, bias, out, eps, C, CHUNK, num_warps=WARPS)
