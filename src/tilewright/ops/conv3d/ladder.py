"""The rungs of conv3d: each is declared once, here; the kernels are in `cpu/`, where rungs that
differ little share a file.

Every rung's run(x, weights, out, border) computes out (O, D, H, W) of x (C, D, H, W), rows of both contiguous.
"""

from importlib.util import find_spec

from tilewright.ops.conv3d import gpu_ladder
from tilewright.ops.conv3d.operands import Packed
from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import at_most, on


def _symmetric(problem) -> str | None:
    """Planes of the kernel are equal in pairs."""
    return None if problem.symmetric else "the kernel is another one read backwards along z"


def _scipy(problem) -> str | None:
    """scipy.fft is there."""
    return None if find_spec("scipy") else "unavailable - No module named 'scipy'"


ladder = Ladder("conv3d", prefer=("cpu.separable", "cpu.folded", "cpu.rows", *gpu_ladder.PREFER))
on_cpu = on("cpu", "float32")


@ladder.rung("cpu.naive", after=None, needs=(on_cpu,), idea="six loops; the sum stays in a register until it is whole")
def naive(x, weights, out, border):
    from tilewright.ops.conv3d.cpu.naive import convolve

    convolve(x, weights, out, border)


@ladder.rung(
    "cpu.taps", after="cpu.naive", needs=(on_cpu,), idea="the taps are one run of vectors, reduced once at the end"
)
def taps(x, weights, out, border):
    from tilewright.ops.conv3d.cpu.taps import convolve

    convolve(x, weights, out, border)


@ladder.rung("cpu.threads", after="cpu.naive", needs=(on_cpu,), idea="threads draw planes")
def all_threads(x, weights, out, border):
    from tilewright.ops.conv3d.cpu.naive import convolve

    convolve(x, weights, out, border, alone=False)


@ladder.rung("cpu.vectors", after="cpu.threads", needs=(on_cpu,), idea="a vector is a piece of a row of outputs")
def vectors(x, weights, out, border):
    from tilewright.ops.conv3d.cpu.vectors import convolve

    convolve(x, weights, out, border)


def _columns_first(weights: Packed):
    from tilewright.ops.conv3d.cpu.rows import columns_first

    return columns_first(weights.weights)


@ladder.rung(
    "cpu.rows",
    after="cpu.vectors",
    needs=(on_cpu,),
    prepare=_columns_first,
    idea="sixteen rows of outputs stay in registers, and each loaded vector feeds up to KH of them",
)
def rows(x, weights, out, border):
    from tilewright.ops.conv3d.cpu.rows import convolve

    convolve(x, weights, out, border)


def _folded_columns(weights: Packed):
    from tilewright.ops.conv3d.cpu.rows import columns_first

    return columns_first(weights.weights, weights.problem.KD // 2)


@ladder.rung(
    "cpu.folded",
    after="cpu.rows",
    needs=(on_cpu, _symmetric),
    prepare=_folded_columns,
    idea="planes that meet equal taps are added first, and multiplied once",
)
def folded(x, weights, out, border):
    from tilewright.ops.conv3d.cpu.rows import convolve

    convolve(x, weights, out, border, half=weights.problem.KD // 2)


@ladder.rung(
    "cpu.separable",
    after="cpu.rows",
    needs=(on_cpu, gpu_ladder.separable),
    c=4.0,
    idea="three short passes, along y, x and z, over a tile that stays in cache",
)
def separable(x, weights, out, border):
    from tilewright.ops.conv3d.cpu.separable import convolve

    convolve(x, weights, out, border)


@ladder.rung(
    "cpu.fft",
    after="cpu.naive",
    needs=(on_cpu, _scipy, at_most("O", 1), at_most("C", 1)),
    idea="products of Fourier transforms by scipy, in float64, a block of the volume at a time",
)
def fft(x, weights, out, border):
    from tilewright.ops.conv3d.cpu.fft import convolve

    convolve(x, weights, out, border)


gpu_ladder.declare(ladder)
