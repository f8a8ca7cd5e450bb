"""The rungs of matmul_argmax. run(a, prepared, index, value): float32 (M, K), M > 0, to int64 (M,) and float32 (M,)."""

import numpy as np

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.memory import empty
from tilewright.ops.core.needs import at_most, cpu_feature, divides, on
from tilewright.ops.matmul_argmax import gpu_ladder
from tilewright.ops.matmul_argmax.operands import Prepared, Screen

LOGITS_BYTES = 16 << 20  # of products held at once where they are written
MOST_COLUMNS = 1 << 24  # a column's number is kept as a float32
MOST_DEPTH = 4096  # of a sum that is taken in one block: 192 rows of it are 3 MiB
WHOLE = 0.4  # constant of the bound, in units of that of limbs, where numbers are not split

ladder = Ladder("matmul_argmax", prefer=("cpu.screened", "cpu.fused", "cpu.logits", *gpu_ladder.PREFER))
here = on("cpu", "float32", "bfloat16")


KINDS = {"cpu.threads": "float32", "cpu.widened": "mixed", "cpu.dot_pairs": "dot_pairs", "cpu.amx": "amx"}


def one_block(problem) -> str | None:
    """matmul's kernel for these weights can take a sum in one block: a partial one has nowhere to stay."""
    if problem.layout not in KINDS:
        return f"the weights are laid out for matmul's {problem.layout}"
    most = MOST_DEPTH
    if problem.layout == "cpu.amx":
        from tilewright.ops.gemm.cpu.amx import KC  # words of two numbers

        most = 2 * KC
    return f"K is {problem.K}, it takes up to {most}" if most < problem.K else None


@ladder.rung("cpu.logits", after=None, needs=(here,), idea="every product is written, then the largest is looked for")
def logits(a: np.ndarray, prepared: Prepared, index: np.ndarray, value: np.ndarray) -> None:
    from tilewright.ops.matmul import matmul

    step = max(1, LOGITS_BYTES // (4 * prepared.weights.N))
    out = empty((min(step, len(a)), prepared.weights.N))
    for i in range(0, len(a), step):
        rows = a[i : i + step]
        products = matmul(rows, prepared.weights, out=out[: len(rows)])
        index[i : i + step] = best = products.argmax(axis=1)
        value[i : i + step] = products[np.arange(len(rows)), best]


@ladder.rung(
    "cpu.fused",
    after="cpu.logits",
    needs=(here, one_block, at_most("N", MOST_COLUMNS)),
    c=WHOLE,
    idea="the largest is kept as products leave the registers; none is written",
)
def fused(a: np.ndarray, prepared: Prepared, index: np.ndarray, value: np.ndarray) -> None:
    from tilewright.ops.matmul_argmax.cpu.fused import best

    index[...], value[...] = best(KINDS[prepared.weights.rung], a, prepared.weights)


def _screen(b: np.ndarray) -> Screen | None:
    from tilewright.ops.matmul_argmax.cpu.screened import screen

    return screen(b)


@ladder.rung(
    "cpu.screened",
    after="cpu.fused",
    needs=(on("cpu", "float32"), cpu_feature("avx512vnni"), divides("K", 16), at_most("N", MOST_COLUMNS)),
    prepare=_screen,
    idea="products in 8 bits with a bound of their error; only columns that may be the largest in float32",
)
def screened(a: np.ndarray, prepared: Prepared, index: np.ndarray, value: np.ndarray) -> None:
    from tilewright.ops.matmul_argmax.cpu.screened import best

    if prepared.screen is None:
        logits(a, prepared, index, value)
        return
    index[...], value[...] = best(a, prepared.screen)
    undecided = np.flatnonzero(index < 0)  # too many candidates: the weights are too alike for 8 bits
    if len(undecided):
        columns, values = np.empty(len(undecided), np.int64), np.empty(len(undecided), np.float32)
        logits(a[undecided], prepared, columns, values)
        index[undecided], value[undecided] = columns, values


gpu_ladder.declare(ladder)
