"""The rungs of correlate, on the CPU.

A kernel is called as kernel(x, taps, edges, out), taps being the elements of the filter: arrays of any dtype of `KINDS`
and equal shape, not empty. out may be x itself; otherwise they share no memory. Sums are float64, in the order that
`taps` gives.
"""

from tilewright.ops.core.ladder import Ladder, Rung


def mean(problem) -> str | None:
    """All weights are equal and along one axis."""
    return None if problem.mean else "it takes a mean along one axis"


# fmt: off
ladder = Ladder(
    "correlate",
    Rung("cpu.naive",
         idea="one output after the other, each element found by its axes' offsets",
         kernel="correlate.cpu.naive:sum_each"),
    Rung("cpu.tiles", after="cpu.naive",
         idea="tiles with their halo as float64 in scratch; a vector of outputs at a time; threads take tiles",
         kernel="correlate.cpu.tiles:sum_tiles", options={"wide": 1}),
    Rung("cpu.registers", after="cpu.tiles", chosen=True,
         idea="eight vectors of sums side by side hide the latency of additions; threads take tiles",
         kernel="correlate.cpu.tiles:sum_tiles"),
    Rung("cpu.running_sum", after="cpu.registers", needs=(mean,), chosen=True,
         idea="a running sum adds the element that enters the window and subtracts the one that leaves",
         kernel="correlate.cpu.running:run_means"),
)
