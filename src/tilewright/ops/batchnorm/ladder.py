"""The rungs of batchnorm. run(x, scale, shift, activation, out): x and out float32 (rows, C) with contiguous rows;
out = activation(x * scale + shift)."""

from tilewright.ops.batchnorm import gpu_ladder
from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import on

ladder = Ladder("batchnorm", prefer=("cpu.threads", *gpu_ladder.PREFER))
needs = (on("cpu", "float32"),)


@ladder.rung("cpu.naive", after=None, needs=needs, idea="one number after the other")
def naive(x, scale, shift, activation, out):
    from tilewright.ops.batchnorm.cpu.naive import normalise

    normalise(x, scale, shift, activation, out)


@ladder.rung("cpu.vectors", after="cpu.naive", needs=needs, idea="whole vectors of channels")
def vectors(x, scale, shift, activation, out):
    from tilewright.ops.batchnorm.cpu.vectors import normalise

    normalise(x, scale, shift, activation, out, alone=True)


@ladder.rung("cpu.threads", after="cpu.vectors", needs=needs, idea="threads draw rows")
def all_threads(x, scale, shift, activation, out):
    from tilewright.ops.batchnorm.cpu.vectors import normalise

    normalise(x, scale, shift, activation, out)


gpu_ladder.declare(ladder)
