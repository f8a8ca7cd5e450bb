"""The rungs of matmul_argmax, for all engines.

A kernel is called as kernel(a, prepared, index, value): a (M, K), M > 0, to int64 index (M,) and float32 value (M,).
NumPy arrays on the CPU, a float32; contiguous torch tensors on a GPU, a of a dtype that matmul takes.
"""

from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import at_most, divides, engine, fast_bytes, hopper, on
from tilewright.ops.matmul_argmax.operands import KINDS

MOST_COLUMNS = 1 << 24  # a column's index is kept as a float32
MOST_DEPTH = 4096  # most terms of a sum that one block computes: 192 rows of them are 3 MiB
MOST_SCREENED = 8192  # the same in 8 bits: 192 rows are 1.5 MiB
ROUNDED = ("bfloat16", "float16", "tf32")  # accuracy classes that matrix units multiply as they are

# Constants of the bounds, in units of that of limbs: where elements are not split; where matrix units truncate
WHOLE, TRUNCATED, LIMBS = 0.4, 0.8, 1.0


def one_block(problem) -> str | None:
    """matmul's kernel for these weights can compute a sum in one block: there is no buffer for a partial sum."""
    if problem.layout not in KINDS:
        return f"the weights are laid out for matmul's {problem.layout}"
    most = MOST_DEPTH
    if problem.layout == "cpu.amx":
        from tilewright.ops.gemm.cpu.amx import KC  # words of two elements

        most = 2 * KC
    return f"K is {problem.K}, it takes up to {most}" if most < problem.K else None


def single_sums(problem) -> str | None:
    """for bfloat16, weights of matmul's cpu.widened or cpu.dot_pairs: the sum of one column can be computed again"""
    if problem.dtype == "float32" or problem.layout in ("cpu.widened", "cpu.dot_pairs"):
        return None
    return f"the weights are laid out for matmul's {problem.layout}, whose sums cannot be computed again one by one"


def in_tiles(problem) -> str | None:
    """The weights are laid out for matmul's tile kernels; those of float32, in limbs."""
    if problem.layout.startswith("tile."):
        return None
    return f"the weights are laid out for matmul's {problem.layout}"


CPU = (on("cpu", "float32", "bfloat16"),)
SIMT = (on("cuda", "float32", *ROUNDED), engine("simt"))
TILE = (on("cuda", *ROUNDED), engine("tile"), in_tiles)
TILE_LIMBS = (on("cuda", "float32"), engine("tile"), in_tiles)

# fmt: off
ladder = Ladder(
    "matmul_argmax",
    Rung("cpu.logits", needs=CPU, chosen=True, calls=("matmul",),
         idea="every product is written, then the largest of each row is searched",
         kernel="matmul_argmax.cpu.logits:search"),
    Rung("cpu.fused", after="cpu.logits", needs=(*CPU, one_block, at_most("N", MOST_COLUMNS)), chosen=True, c=WHOLE,
         idea="the largest product is found while the products are in registers; none is written",
         kernel="matmul_argmax.cpu.fused:search"),
    Rung("cpu.screened", after="cpu.fused",
         needs=(*CPU, fast_bytes, single_sums, divides("K", 16), at_most("K", MOST_SCREENED),
                at_most("N", MOST_COLUMNS)),
         chosen=True, calls=("matmul",),
         idea="products in 8 bits with a bound of their error; then only the columns that may be the largest",
         kernel="matmul_argmax.cpu.screened:search", prepare="matmul_argmax.cpu.screened:screen",
         memory="matmul_argmax.memory:screen"),
    Rung("simt.row", needs=SIMT, chosen=True, c=LIMBS, calls=("matmul",),
         idea="matmul's product is written, and one thread searches each row of it",
         kernel="matmul_argmax.simt.launch:search", options={"kernel": "row"}),
    Rung("simt.shuffles", after="simt.row", needs=SIMT, chosen=True, c=LIMBS, calls=("matmul",),
         idea="one warp per row, 32 adjacent products at a time; its threads combine their best by shuffles",
         kernel="matmul_argmax.simt.launch:search", options={"kernel": "shuffles"}),
    Rung("tile.fused", needs=TILE, chosen=True, c=TRUNCATED,
         idea="each tile of products gives the best of each row; no product is written",
         kernel="matmul_argmax.tile.launch:search"),
    Rung("tile.specialized", after="tile.fused", needs=(*TILE, hopper), chosen=True, c=TRUNCATED,
         idea="two warps copy tiles in, two warpgroups multiply them",
         kernel="matmul_argmax.tile.launch:search", options={"specialized": True}),
    Rung("tile.fused_limbs", needs=TILE_LIMBS, chosen=True, c=LIMBS,
         idea="each tile of three bfloat16 limb products gives the best of each row; no product is written",
         kernel="matmul_argmax.tile.launch:search"),
    Rung("tile.specialized_limbs", after="tile.fused_limbs", needs=(*TILE_LIMBS, hopper), chosen=True, c=LIMBS,
         idea="two warps copy limbs in, two warpgroups multiply",
         kernel="matmul_argmax.tile.launch:search", options={"specialized": True}),
)
