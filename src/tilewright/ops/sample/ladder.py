"""The rungs of sample. run(logits, rules, chosen, logarithms): float32 (n, V) with contiguous rows to int64
(n, 1 + most), the token and then the best ones, and float64 (n,)."""

import numpy as np

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import on
from tilewright.ops.sample import gpu_ladder
from tilewright.ops.sample.operands import Rules

ladder = Ladder("sample", prefer=("cpu.buckets", *gpu_ladder.PREFER))
here = on("cpu", "float32")


@ladder.rung("cpu.sorted", after=None, needs=(here,), idea="NumPy sorts a row's best, or all, and adds them up")
def sorted_rows(logits: np.ndarray, rules: Rules, chosen: np.ndarray, logarithms: np.ndarray) -> None:
    from tilewright.ops.sample.cpu.ordered import sample

    sample(logits, rules, chosen, logarithms)


@ladder.rung(
    "cpu.buckets",
    after="cpu.sorted",
    needs=(here,),
    idea="weights in vectors, summed in buckets of their distance from the best; one bucket alone is ordered",
)
def buckets(logits: np.ndarray, rules: Rules, chosen: np.ndarray, logarithms: np.ndarray) -> None:
    from tilewright.ops.sample.cpu.buckets import sample

    sample(logits, rules, chosen, logarithms)


gpu_ladder.declare(ladder)
