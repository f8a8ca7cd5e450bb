"""The rungs of conv1d: each is declared once, here; the kernels are in `cpu/`, a file an idea.

Every rung's run(x, weights, out, window, epilogue) computes out (B, O, positions), or (B, O, 1) with pooling.
Kernels are imported when a rung first runs, so that listing the ladder costs nothing.
"""

import numpy as np

from tilewright.ops.conv1d import gpu_ladder
from tilewright.ops.conv1d.operands import Packed
from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import on

DEEP, WIDE = 8192, 128  # C * K and O from which float32 goes to matmul: the table in README.md

ladder = Ladder("conv1d", prefer=("cpu.matmul", "cpu.channel_tiles", *gpu_ladder.PREFER))
float32 = on("cpu", "float32")


def _deep_and_wide(problem) -> str | None:
    """C * K and O are so large that matmul is ahead; bfloat16 has no other rung, so any will do there."""
    depth = problem.C * problem.K
    if problem.dtype != "float32" or problem.device != "cpu" or (depth >= DEEP and problem.O >= WIDE):
        return None
    return f"C * K is {depth} and O is {problem.O}, it needs {DEEP} and {WIDE}: below, channel tiles are faster"


@ladder.rung(
    "cpu.naive", after=None, needs=(float32,), idea="five loops; the sum stays in a register until it is whole"
)
def naive(x, weights, out, window, epilogue):
    from tilewright.ops.conv1d.cpu.naive import convolve

    convolve(x, weights, out, window, epilogue)


@ladder.rung(
    "cpu.taps",
    after="cpu.naive",
    needs=(float32,),
    idea="the taps of a channel are one vector, reduced once at the end",
)
def taps(x, weights, out, window, epilogue):
    from tilewright.ops.conv1d.cpu.taps import convolve

    convolve(x, weights, out, window, epilogue)


def _pack_channels(weight: np.ndarray, rung: str, dtype: str) -> Packed:
    from tilewright.ops.conv1d.cpu.channel_tiles import pack_channels

    return pack_channels(weight, rung)


@ladder.rung(
    "cpu.channel_tiles",
    after="cpu.taps",
    needs=(float32,),
    prepare=_pack_channels,
    idea="a tile of output channels x positions stays in registers; threads draw tiles",
)
def channel_tiles(x, weights, out, window, epilogue):
    from tilewright.ops.conv1d.cpu.channel_tiles import convolve

    convolve(x, weights, out, window, epilogue)


def _pack_matrix(weight: np.ndarray, rung: str, dtype: str) -> Packed:
    from tilewright.ops.conv1d.cpu.matmul import pack_matrix

    return pack_matrix(weight, rung, dtype)


@ladder.rung(
    "cpu.matmul",
    after="cpu.channel_tiles",
    needs=(on("cpu", "float32", "bfloat16"), _deep_and_wide),
    prepare=_pack_matrix,
    c=10.0,
    idea="one matmul over overlapping rows of x, channels last: im2col without its matrix",
)
def matmul(x, weights, out, window, epilogue):
    from tilewright.ops.conv1d.cpu.matmul import convolve

    convolve(x, weights, out, window, epilogue)


gpu_ladder.declare(ladder)
