"""The rungs of correlate. run(x, taps, edges, out): arrays of any dtype of `KINDS` and equal shape, not empty.

out may be x itself; beyond that they share no memory. The sum is float64 in the order that `taps` says.
"""

from tilewright.ops.core.ladder import Ladder

ladder = Ladder("correlate", prefer=("cpu.running_sum", "cpu.threads"))


def _mean(problem) -> str | None:
    """All weights are equal and along one axis."""
    return None if problem.mean else "it takes a mean along one axis"


@ladder.rung("cpu.naive", after=None, idea="one output after the other, each number looked up by its axes' offsets")
def naive(x, taps, edges, out):
    from tilewright.ops.correlate.cpu.naive import sum_each

    sum_each(x, taps, edges, out)


@ladder.rung(
    "cpu.tiles",
    after="cpu.naive",
    idea="a tile and its halo as float64 in scratch; a vector of outputs takes a tap at a time",
)
def tiles(x, taps, edges, out):
    from tilewright.ops.correlate.cpu.tiles import sum_tiles

    sum_tiles(x, taps, edges, out, wide=1, alone=True)


@ladder.rung(
    "cpu.registers", after="cpu.tiles", idea="eight vectors of sums side by side, so that none waits for itself"
)
def registers(x, taps, edges, out):
    from tilewright.ops.correlate.cpu.tiles import sum_tiles

    sum_tiles(x, taps, edges, out, alone=True)


@ladder.rung("cpu.threads", after="cpu.registers", idea="threads draw tiles")
def all_threads(x, taps, edges, out):
    from tilewright.ops.correlate.cpu.tiles import sum_tiles

    sum_tiles(x, taps, edges, out)


@ladder.rung(
    "cpu.running_sum",
    after="cpu.threads",
    needs=(_mean,),
    idea="a sum that adds the number coming in and takes off the one leaving, for any size",
)
def running_sum(x, taps, edges, out):
    from tilewright.ops.correlate.cpu.running import run_means

    run_means(x, taps, edges, out)
