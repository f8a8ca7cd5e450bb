"""The rungs of the elementwise functions.

run(function, x, out): a name of `spec.FUNCTIONS`, float32 (rows, C) twice with contiguous rows; out may be x.
"""

from tilewright.ops._ladder import Ladder

ladder = Ladder("elementwise", prefer=("cpu.threads",))


@ladder.rung("cpu.naive", after=None, idea="one number after the other, by the C library's functions in float64")
def naive(function, x, out):
    from tilewright.ops.elementwise.cpu.naive import apply

    apply(function, x, out)


@ladder.rung("cpu.vectors", after="cpu.naive", idea="whole vectors through a polynomial of our own")
def vectors(function, x, out):
    from tilewright.ops.elementwise.cpu.vectors import apply

    apply(function, x, out, alone=True)


@ladder.rung("cpu.threads", after="cpu.vectors", idea="threads draw pieces")
def all_threads(function, x, out):
    from tilewright.ops.elementwise.cpu.vectors import apply

    apply(function, x, out)
