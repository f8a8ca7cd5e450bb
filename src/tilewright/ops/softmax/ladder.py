"""The rungs of softmax. run(x, out): float32 (rows, C), rows contiguous; out may be x."""

from tilewright.ops._ladder import Ladder

ladder = Ladder("softmax", prefer=("cpu.threads",))


@ladder.rung("cpu.naive", after=None, idea="one number after the other: largest, exp and sum, division")
def naive(x, out):
    from tilewright.ops.softmax.cpu.naive import normalise

    normalise(x, out)


@ladder.rung("cpu.vectors", after="cpu.naive", idea="whole vectors, several maxima and sums side by side")
def vectors(x, out):
    from tilewright.ops.softmax.cpu.vectors import normalise

    normalise(x, out, alone=True)


@ladder.rung(
    "cpu.online", after="cpu.vectors", idea="largest and sum in one pass, the sum rescaled as the largest grows"
)
def online(x, out):
    from tilewright.ops.softmax.cpu.online import normalise

    normalise(x, out)


@ladder.rung("cpu.threads", after="cpu.vectors", idea="threads draw rows")
def all_threads(x, out):
    from tilewright.ops.softmax.cpu.vectors import normalise

    normalise(x, out)
