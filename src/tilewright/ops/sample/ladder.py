"""The rungs of sample, for all engines.

CPU: kernel(logits, rules, chosen, logarithms): float32 (n, V) with contiguous rows to int64 (n, 1 + most), the token
and then the best ones, and float64 (n,). GPU: kernel(logits, scores, numbers, words, tokens): logits and scores, which
contain a row's penalties and banned tokens, float32 (n, V), contiguous, V below 2^31; see `operands.Rules`.
"""

from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import engine, on

CPU = (on("cpu", "float32"),)
TILE = (on("cuda", "float32"), engine("tile"))

ladder = Ladder(
    "sample",
    Rung(
        "cpu.sorted",
        idea="NumPy sorts a row's best, or all, and adds them up",
        needs=CPU,
        kernel="sample.cpu.ordered:sample",
    ),
    Rung(
        "cpu.buckets",
        after="cpu.sorted",
        idea="weights in vectors, summed in buckets by distance from the best; one bucket is sorted",
        needs=CPU,
        kernel="sample.cpu.buckets:sample",
        chosen=True,
    ),
    Rung(
        "tile.search",
        idea="no sorting: the score at which a target is reached is found by sums over all tokens",
        needs=TILE,
        kernel="sample.tile.search:run",
    ),
    Rung(
        "tile.narrow",
        after="tile.search",
        idea="a range of scores is narrowed until its tokens fit in registers, and halved there",
        needs=TILE,
        kernel="sample.tile.narrow:run",
        chosen=True,
    ),
)
