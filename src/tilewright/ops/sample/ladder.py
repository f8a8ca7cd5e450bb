"""The rungs of sample, for all engines.

CPU: kernel(logits, rules, chosen, logarithms): float32 (n, V) with contiguous rows to int64 (n, 1 + most), the token
and then the best ones, and float64 (n,). GPU: kernel(logits, scores, floats, integers, tokens, peaks): logits and
scores, which contain a row's penalties and banned tokens, float32 (n, V), of one stride, V below 2^31 - 4095; see
`operands.Rules`. peaks: None, or the largest of each PEAK scores of a row, float32 (n, groups), which a rung may use.
"""

from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import engine, on

CPU = (on("cpu", "float32"),)
TILE = (on("cuda", "float32"), engine("tile"))

# fmt: off
ladder = Ladder(
    "sample",
    Rung("cpu.sorted", needs=CPU,
         idea="NumPy sorts a row's best tokens, or all, and adds up their weights",
         kernel="sample.cpu.ordered:sample"),
    Rung("cpu.buckets", after="cpu.sorted", needs=CPU, chosen=True,
         idea="weights in vectors, summed in buckets by distance from the best; one bucket is sorted",
         kernel="sample.cpu.buckets:sample"),
    Rung("tile.search", needs=TILE,
         idea="no sort: sums over all tokens find the score at which the cumulative weight is enough",
         kernel="sample.tile.search:run"),
    Rung("tile.narrow", after="tile.search", needs=TILE,
         idea="keys around a guess leave few tokens after one pass; these stay in registers and are halved",
         kernel="sample.tile.narrow:run"),
    Rung("tile.columns", after="tile.narrow", needs=TILE, chosen=True,
         idea="a small top_k: one pass keeps the best of each column, and only high columns are searched",
         kernel="sample.tile.columns:run"),
)
