"""The rungs of the elementwise functions.

run(function, x, out): a name of `reference.FUNCTIONS`, float32 (rows, C) twice with contiguous rows; out may be x.
"""

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import on
from tilewright.ops.elementwise import gpu_ladder

ladder = Ladder("elementwise", prefer=("cpu.threads", *gpu_ladder.PREFER))
needs = (on("cpu", "float32"),)


@ladder.rung(
    "cpu.naive",
    after=None,
    needs=needs,
    idea="one number after the other, by the C library's functions in float64",
)
def naive(function, x, out):
    from tilewright.ops.elementwise.cpu.naive import apply

    apply(function, x, out)


@ladder.rung("cpu.vectors", after="cpu.naive", needs=needs, idea="whole vectors through a polynomial of our own")
def vectors(function, x, out):
    from tilewright.ops.elementwise.cpu.vectors import apply

    apply(function, x, out, alone=True)


@ladder.rung("cpu.threads", after="cpu.vectors", needs=needs, idea="threads draw pieces")
def all_threads(function, x, out):
    from tilewright.ops.elementwise.cpu.vectors import apply

    apply(function, x, out)


gpu_ladder.declare(ladder)
