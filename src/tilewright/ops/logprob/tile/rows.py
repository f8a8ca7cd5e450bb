"""matmul writes the logits of some rows, then one program per row finds its maximum, sum of exps and best column.

The product is the limit; besides, each logit is written once and read once or twice. Only LOGITS_BYTES of logits exist
at a time. A lane of a program sums every BN-th column, and the lanes are combined last, so a row's bits depend on that
row alone. A NaN or an infinite logit makes the value NaN.
"""

import torch
import triton
import triton.language as tl

from tilewright.ops.logprob.operands import Prepared, Results
from tilewright.ops.matmul import matmul

LOGITS_BYTES = 256 << 20  # most bytes of logits held at once: 1,300 rows of GPT-2's vocabulary
BN, WARPS = 4096, 8  # columns at a time, 16 per thread
LOWEST = tl.constexpr(-3.4028235e38)  # of lanes without a column: exp of any difference is finite, and counts as 0


@triton.jit
def best_of(largest, columns):
    """(the maximum of the lanes' largest logits, the lowest column that has it)."""
    top = tl.max(largest, 0)
    return top, tl.min(tl.where(largest == top, columns, 2147483647), 0)


@triton.jit
def write_row(logits, targets, value, best, found, N):
    """The results of one row: its target's logit, less the maximum, less the logarithm of the sum. found: (maximum, its
    column, sum of exps)."""
    top, column, total = found
    row = tl.program_id(0)
    target = tl.load(targets + row)
    wanted = tl.load(logits + row.to(tl.int64) * N + target, mask=(target >= 0) & (target < N), other=float("nan"))
    tl.store(value + row, wanted - top - tl.log(total))
    tl.store(best + row, column.to(tl.int64))


@triton.jit
def two_passes(logits, targets, value, best, N, BN: tl.constexpr):
    """logits: pointer to float32 (rows, N). targets: to int64 (rows,). One program per row."""
    start, lanes = tl.program_id(0).to(tl.int64) * N, tl.arange(0, BN)
    largest, columns = tl.full((BN,), LOWEST, tl.float32), lanes
    for first in range(0, N, BN):
        at = first + lanes
        x = tl.load(logits + start + at, mask=at < N, other=LOWEST)
        columns = tl.where(x > largest, at, columns)
        largest = tl.maximum(largest, x)
    top, column = best_of(largest, columns)
    sums = tl.zeros((BN,), tl.float32)
    for first in range(0, N, BN):
        at = first + lanes
        x = tl.load(logits + start + at, mask=at < N, other=LOWEST)
        sums += tl.exp(x - top)
    write_row(logits, targets, value, best, (top, column, tl.sum(sums, 0)), N)


@triton.jit
def one_pass(logits, targets, value, best, N, BN: tl.constexpr):
    """As `two_passes`, but each logit is read once: a lane scales its sum when it meets a larger logit."""
    start, lanes = tl.program_id(0).to(tl.int64) * N, tl.arange(0, BN)
    largest, columns, sums = tl.full((BN,), LOWEST, tl.float32), lanes, tl.zeros((BN,), tl.float32)
    for first in range(0, N, BN):
        at = first + lanes
        x = tl.load(logits + start + at, mask=at < N, other=LOWEST)
        larger = tl.maximum(largest, x)
        sums = sums * tl.exp(largest - larger) + tl.exp(x - larger)
        columns = tl.where(x > largest, at, columns)
        largest = larger
    top, column = best_of(largest, columns)
    total = tl.sum(sums * tl.exp(largest - top), 0)
    write_row(logits, targets, value, best, (top, column, total), N)


KERNELS = {"two passes": two_passes, "one pass": one_pass}


def score(a, prepared: Prepared, targets, results: Results, *, kernel: str) -> None:
    """The results of every row of a, some rows at a time. kernel: a name in KERNELS."""
    N = prepared.weights.N
    step = max(1, LOGITS_BYTES // (4 * N))
    out = a.new_empty((min(step, len(a)), N), dtype=torch.float32)
    bias = prepared.bias if len(prepared.bias) else None
    for i in range(0, len(a), step):
        rows, part = a[i : i + step], slice(i, i + step)
        logits = matmul(rows, prepared.weights, bias=bias, out=out[: len(rows)])
        arrays = logits, targets[part], results.value[part], results.best[part]
        KERNELS[kernel][(len(rows),)](*arrays, N, BN, num_warps=WARPS)
