"""The rungs of layernorm. run(x, weight, bias, eps, out): x float32, out float32 or bfloat16, both (rows, C) with
contiguous rows."""

import numpy as np

from tilewright.ops.core.arrays import put_back
from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import on
from tilewright.ops.layernorm import gpu_ladder

ladder = Ladder("layernorm", prefer=("cpu.threads", *gpu_ladder.PREFER))
needs = (on("cpu", "float32"),)


@ladder.rung("cpu.naive", after=None, needs=needs, idea="one number after the other: mean, variance, result")
def naive(x, weight, bias, eps, out):
    from tilewright.ops.layernorm.cpu.naive import normalise

    result = out if out.dtype == np.float32 else np.empty(out.shape, np.float32)
    normalise(x, weight, bias, eps, result)
    put_back(out, result)


@ladder.rung("cpu.vectors", after="cpu.naive", needs=needs, idea="whole vectors, four partial sums of each kind")
def vectors(x, weight, bias, eps, out):
    from tilewright.ops.layernorm.cpu.vectors import normalise

    normalise(x, weight, bias, eps, out, alone=True)


@ladder.rung("cpu.threads", after="cpu.vectors", needs=needs, idea="threads draw rows")
def all_threads(x, weight, bias, eps, out):
    from tilewright.ops.layernorm.cpu.vectors import normalise

    normalise(x, weight, bias, eps, out)


gpu_ladder.declare(ladder)
