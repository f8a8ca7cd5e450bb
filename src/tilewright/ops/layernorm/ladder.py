"""The rungs of layernorm. run(x, weight, bias, eps, out): x and out float32 (rows, C) with contiguous rows."""

from tilewright.ops._ladder import Ladder

ladder = Ladder("layernorm", prefer=("cpu.threads",))


@ladder.rung("cpu.naive", after=None, idea="one number after the other: mean, variance, result")
def naive(x, weight, bias, eps, out):
    from tilewright.ops.layernorm.cpu.naive import normalise

    normalise(x, weight, bias, eps, out)


@ladder.rung("cpu.vectors", after="cpu.naive", idea="whole vectors, four partial sums of each kind")
def vectors(x, weight, bias, eps, out):
    from tilewright.ops.layernorm.cpu.vectors import normalise

    normalise(x, weight, bias, eps, out, alone=True)


@ladder.rung("cpu.threads", after="cpu.vectors", idea="threads draw rows")
def all_threads(x, weight, bias, eps, out):
    from tilewright.ops.layernorm.cpu.vectors import normalise

    normalise(x, weight, bias, eps, out)
