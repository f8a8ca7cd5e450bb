"""The rungs of logprob.

A kernel is called as kernel(a, prepared, targets, results): float32 a (M, K), M > 0, int64 targets (M,), and a
`Results` that it fills. On a GPU these are contiguous tensors, a of a dtype that matmul takes. A row's bits depend on
the row and the weights alone, so the columns are cut into groups whose width does not depend on the number of rows.
"""

from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import at_most, engine, on
from tilewright.ops.logprob.operands import FLOAT32, KINDS

MOST_COLUMNS = 1 << 24  # a column's index is kept as a float32
MOST_DEPTH = 4096  # most terms of a sum that one block computes: 192 rows of them are 3 MiB
WHOLE = 0.4  # constant of the bound where elements are not split, in units of that of limbs


def one_block(problem) -> str | None:
    """matmul's kernel for these weights can compute a sum in one block: there is no buffer for a partial sum."""
    if problem.layout not in KINDS:
        return f"the weights are laid out for matmul's {problem.layout}"
    most = MOST_DEPTH
    if KINDS[problem.layout] == "amx":
        from tilewright.ops.gemm.cpu.amx import KC  # words of two elements

        most = 2 * KC
    return f"K is {problem.K}, it takes up to {most}" if most < problem.K else None


def float32_layout(problem) -> str | None:
    """The weights are laid out as float32."""
    return None if problem.layout in FLOAT32 else f"the weights are laid out for matmul's {problem.layout}"


CPU = (on("cpu", "float32", "bfloat16"),)
TILE = (on("cuda", "float32", "bfloat16", "float16"), engine("tile"))
FUSED = (*CPU, one_block, at_most("N", MOST_COLUMNS))

# fmt: off
ladder = Ladder(
    "logprob",
    Rung("cpu.naive", needs=(on("cpu", "float32"), float32_layout),
         idea="scalar loops; a row's products are computed twice, for their maximum and for the sum of exps",
         kernel="logprob.cpu.naive:score", prepare="logprob.cpu.naive:plain", memory="logprob.memory:plain"),
    Rung("cpu.pieces", after="cpu.naive", needs=CPU, chosen=True, calls=("matmul",),
         idea="matmul writes the logits of some rows, then a kernel reads each row twice",
         kernel="logprob.cpu.pieces:score"),
    Rung("cpu.two_pass", after="cpu.pieces", needs=FUSED,
         idea="no logit is written: one product for the maximum of each row, a second one for the sum of exps",
         kernel="logprob.cpu.fused:score_twice"),
    Rung("cpu.online", after="cpu.two_pass", needs=FUSED, chosen=True,
         idea="one product: the sum so far is scaled when a tile has a larger logit",
         kernel="logprob.cpu.fused:score"),
    Rung("tile.pieces", needs=TILE, chosen=True, calls=("matmul",),
         idea="matmul writes the logits of some rows, then one program per row reads them twice",
         kernel="logprob.tile.rows:score", options={"kernel": "two passes"}),
    Rung("tile.online", after="tile.pieces", needs=TILE, chosen=True, calls=("matmul",),
         idea="each logit is read once: a lane scales its sum so far when it meets a larger one",
         kernel="logprob.tile.rows:score", options={"kernel": "one pass"}),
)
