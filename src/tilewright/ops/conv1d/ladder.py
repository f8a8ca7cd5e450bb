"""The rungs of conv1d, for all engines.

A kernel is called as kernel(x, weights, out, window, epilogue): x (B, C, L), out (B, O, positions), or (B, O, 1) with
pooling; NumPy arrays on the CPU, torch tensors on a GPU. A function that rearranges weights is called with weight (O,
C, K), the rung's name and the accuracy class.
"""

from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import engine, on

DEEP, WIDE = 8192, 128  # C * K and O from which float32 goes to matmul: the table in docs/lab/conv1d.md
LIMB_DEPTH = 768  # C * K from which matmul's limbs are three products, not four; shorter sums take `simt.rows`
ROUNDED = ("bfloat16", "float16", "tf32")  # accuracy classes that matrix units multiply as they are


def deep_and_wide(problem) -> str | None:
    """C * K and O are so large that matmul is ahead; bfloat16 has no other rung, so any size will do there."""
    depth = problem.C * problem.K
    if problem.dtype != "float32" or problem.device != "cpu" or (depth >= DEEP and problem.O >= WIDE):
        return None
    return f"C * K is {depth} and O is {problem.O}, it needs {DEEP} and {WIDE}: below, channel tiles are faster"


def deep(problem) -> str | None:
    """The sums are so long that three products of limbs hold the float32 bound."""
    depth = problem.C * problem.K
    return None if depth >= LIMB_DEPTH else f"C * K is {depth}, it needs {LIMB_DEPTH}"


CPU = (on("cpu", "float32"),)
SIMT = (on("cuda", "float32"), engine("simt"))

# fmt: off
ladder = Ladder(
    "conv1d",
    Rung("cpu.naive", needs=CPU,
         idea="five loops; the sum stays in a register until it is complete",
         kernel="conv1d.cpu.naive:convolve"),
    Rung("cpu.taps", after="cpu.naive", needs=CPU,
         idea="the taps of a channel are one vector, reduced once at the end",
         kernel="conv1d.cpu.taps:convolve"),
    Rung("cpu.channel_tiles", after="cpu.taps", needs=CPU, chosen=True,
         idea="a tile of output channels x positions stays in registers; threads take tiles",
         kernel="conv1d.cpu.channel_tiles:convolve", prepare="conv1d.cpu.channel_tiles:pack_channels",
         memory="conv1d.memory:channels"),
    Rung("cpu.matmul", after="cpu.channel_tiles", needs=(on("cpu", "float32", "bfloat16"), deep_and_wide),
         calls=("matmul",),
         chosen=True, c=10.0,
         idea="one matmul over overlapping rows of x, channels last: im2col without its matrix",
         kernel="conv1d.cpu.matmul:convolve", prepare="conv1d.cpu.matmul:pack_matrix",
         memory="conv1d.memory:matrix"),
    Rung("simt.naive", needs=SIMT,
         idea="one thread per output; its sum stays in a register",
         kernel="conv1d.simt.launch:convolve", options={"kernel": "naive"}),
    Rung("simt.tiles", after="simt.naive", needs=SIMT,
         idea="shared memory keeps a tile of channels and taps, of filters and x; 16 x 16 outputs per block",
         kernel="conv1d.simt.launch:convolve", options={"kernel": "tiles"}),
    Rung("simt.registers", after="simt.tiles", needs=SIMT,
         idea="one thread per 16 positions, of one sentence or several: a weight in a register serves all",
         kernel="conv1d.simt.launch:convolve", options={"kernel": "registers"}),
    Rung("tile.matmul", needs=(on("cuda", *ROUNDED), engine("tile")), chosen=True, c=8.0, calls=("matmul",),
         idea="the matrix of windows, in pieces, by matmul on matrix units",
         kernel="conv1d.tile.windows:convolve", prepare="conv1d.tile.windows:pack_matrix",
         memory="conv1d.memory:matrix"),
    Rung("simt.fused", after="simt.registers", needs=SIMT, chosen=True,
         idea="ReLU and the maximum over positions are computed in registers; no sum is written",
         kernel="conv1d.simt.launch:convolve_fused"),
    Rung("simt.rows", after="simt.fused", needs=SIMT, chosen=True,
         idea="a row of x in registers, over which the window slides: read once for all taps and 8 filters",
         kernel="conv1d.simt.launch:convolve_rows", options={"filters": 8, "rows_per_block": 16},
         swept={"filters": (4, 8, 16), "rows_per_block": (8, 16, 32)},
         prepare="conv1d.simt.launch:lay_out", memory="conv1d.memory:rows"),
    Rung("tile.limbs", after="tile.matmul", needs=(on("cuda", "float32"), engine("tile"), deep), chosen=True, c=10.0,
         calls=("matmul",),
         idea="the matrix of windows, in pieces, by matmul of float32 as two bfloat16 limbs on matrix units",
         kernel="conv1d.tile.windows:convolve", prepare="conv1d.tile.windows:pack_matrix",
         memory="conv1d.memory:matrix"),
    taught=True,
)
