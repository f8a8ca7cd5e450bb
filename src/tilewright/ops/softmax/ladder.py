"""The rungs of softmax. run(x, out): float32 (rows, C), rows contiguous; out may be x."""

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import on
from tilewright.ops.softmax import gpu_ladder

ladder = Ladder("softmax", prefer=("cpu.threads", *gpu_ladder.PREFER))
needs = (on("cpu", "float32"),)


@ladder.rung("cpu.naive", after=None, needs=needs, idea="one number after the other: largest, exp and sum, division")
def naive(x, out):
    from tilewright.ops.softmax.cpu.naive import normalise

    normalise(x, out)


@ladder.rung("cpu.vectors", after="cpu.naive", needs=needs, idea="whole vectors, several maxima and sums side by side")
def vectors(x, out):
    from tilewright.ops.softmax.cpu.vectors import normalise

    normalise(x, out, alone=True)


@ladder.rung(
    "cpu.online",
    after="cpu.vectors",
    needs=needs,
    idea="largest and sum in one pass, the sum rescaled as the largest grows",
)
def online(x, out):
    from tilewright.ops.softmax.cpu.online import normalise

    normalise(x, out)


@ladder.rung("cpu.threads", after="cpu.vectors", needs=needs, idea="threads draw rows")
def all_threads(x, out):
    from tilewright.ops.softmax.cpu.vectors import normalise

    normalise(x, out)


gpu_ladder.declare(ladder)
