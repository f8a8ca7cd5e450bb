"""The rungs of conv3d, for all engines.

A kernel is called as kernel(x, weights, out, border): out (O, D, H, W) of x (C, D, H, W), float32. On the CPU they are
NumPy arrays with contiguous rows, on a GPU torch tensors, and the last argument is a Window. A function that
rearranges weights is called with a Packed that holds them as they came; on a GPU with the device, too.
"""

from tilewright.ops.conv3d.simt.limits import CUBE, MOST_PLANES, MOST_TAPS, cube_refusal, halo_bytes
from tilewright.ops.core.gpu.limits import SHARED_LIMIT
from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import at_least, at_most, engine, on

LONGEST = 33  # taps along an axis: more, and a plane with its halo does not fit in shared memory
LIMB_DEPTH, LIMBS = 256, 16.0  # limbs are off by up to 255 eps32 of the sum of |products|: LIMBS * 256**0.5
FEWEST = 8  # channels for which a tile of 16 pays
FACTORS = ("cpu.separable", "simt.separable", "tile.passes")  # rungs that take three vectors, not their product


def symmetric(problem) -> str | None:
    """Planes of the kernel are equal in pairs."""
    return None if problem.symmetric else "the kernel is another one read backwards along z"


def separable(problem) -> str | None:
    """The kernel is an outer product of three vectors."""
    return None if problem.separable else "the kernel is no outer product of three vectors"


def few_taps(problem) -> str | None:
    """All weights may be written out in the kernel's code."""
    return _few(problem.KD * problem.KH * problem.KW, "the kernel")


def few_taps_per_plane(problem) -> str | None:
    """The weights of a plane may be written out in the kernel's code."""
    return _few(problem.KH * problem.KW, "a plane of the kernel")


def _few(taps: int, what: str) -> str | None:
    return None if taps <= MOST_TAPS else f"{what} has {taps} taps, it takes up to {MOST_TAPS}"


def fits_a_block(problem, *, tile: int) -> str | None:
    """A block has a thread for each element of a tile with its halo."""
    return cube_refusal((problem.KD, problem.KH, problem.KW), tile)


def fits(problem) -> str | None:
    """A tile with its halo fits in shared memory."""
    nbytes = halo_bytes((problem.KD, problem.KH, problem.KW))
    return None if nbytes <= SHARED_LIMIT else f"a tile with its halo takes {nbytes:,} bytes of shared memory"


def deep(problem) -> str | None:
    """The sums are so long that three products of bfloat16 limbs hold the float32 bound."""
    depth = problem.C * problem.KD * problem.KH * problem.KW
    return None if depth >= LIMB_DEPTH else f"an output has {depth} products, it needs {LIMB_DEPTH}"


CPU = (on("cpu", "float32"),)
SIMT = (on("cuda", "float32"), engine("simt"))
TILE = (on("cuda", "float32"), engine("tile"))
ONE_CHANNEL = at_most("O", 1), at_most("C", 1)
SHORT_ROWS = at_most("KH", LONGEST), at_most("KW", LONGEST)

# fmt: off
ladder = Ladder(
    "conv3d",
    Rung("cpu.naive", needs=CPU,
         idea="six loops; the sum stays in a register until it is complete; threads take planes",
         kernel="conv3d.cpu.naive:convolve"),
    Rung("cpu.taps", after="cpu.naive", needs=CPU,
         idea="SIMD over the window: the taps are one run of vectors, reduced once at the end; threads over z",
         kernel="conv3d.cpu.taps:convolve"),
    Rung("cpu.vectors", after="cpu.naive", needs=CPU,
         idea="a vector is a piece of a row of outputs",
         kernel="conv3d.cpu.vectors:convolve"),
    Rung("cpu.rows", after="cpu.vectors", needs=CPU, chosen=True,
         idea="sixteen rows of outputs stay in registers, and each loaded vector feeds up to KH of them",
         kernel="conv3d.cpu.rows:convolve", prepare="conv3d.cpu.rows:columns_first",
         memory="conv3d.memory:whole"),
    Rung("cpu.folded", after="cpu.rows", needs=(*CPU, symmetric), chosen=True,
         idea="planes that meet equal taps are added first, and multiplied once",
         kernel="conv3d.cpu.rows:convolve_folded", prepare="conv3d.cpu.rows:folded_columns_first",
         memory="conv3d.memory:folded"),
    Rung("cpu.separable", after="cpu.rows", needs=(*CPU, separable), chosen=True, c=4.0,
         idea="three short passes, along y, x and z, over a tile that stays in cache",
         kernel="conv3d.cpu.separable:convolve"),
    Rung("simt.naive", needs=SIMT, chosen=True,
         idea="one thread per output; elements and weights from device memory",
         kernel="conv3d.simt.launch:convolve_naive", prepare="conv3d.simt.launch:on_device",
         memory="conv3d.memory:whole"),
    Rung("simt.cubes", after="simt.naive", needs=SIMT, limit=fits_a_block,
         idea="a cube of outputs with its halo in shared memory: each thread of a block loads one element",
         kernel="conv3d.simt.launch:convolve_cubes", options={"tile": CUBE}, swept={"tile": (1, 2, 3, 4, 5)},
         prepare="conv3d.simt.launch:on_device", memory="conv3d.memory:whole"),
    Rung("simt.shared", after="simt.naive", needs=(*SIMT, fits), chosen=True,
         idea="a block's tile with its halo in shared memory",
         kernel="conv3d.simt.launch:convolve_shared", prepare="conv3d.simt.launch:on_device",
         memory="conv3d.memory:whole"),
    Rung("simt.constant", after="simt.shared", needs=(*SIMT, *ONE_CHANNEL, fits, few_taps),
         idea="weights in constant memory, the loops over taps unrolled",
         kernel="conv3d.simt.launch:convolve_constant", prepare="conv3d.simt.launch:as_constants",
         memory="conv3d.memory:at_launch"),
    Rung("tile.channels", needs=TILE, chosen=True,
         idea="one matrix product over channels and taps, of elements that are fetched as they are needed",
         kernel="conv3d.tile.launch:with_channels", prepare="conv3d.tile.launch:lay_out",
         memory="conv3d.memory:channels"),
    Rung("tile.taps_limbs", after="tile.channels", needs=(*TILE, at_least("C", FEWEST), deep), chosen=True, c=LIMBS,
         idea="one product per tap on matrix units, in float32 as two bfloat16 limbs, three products of them",
         kernel="conv3d.tile.launch:tap_by_tap", prepare="conv3d.tile.launch:lay_out_limbs",
         memory="conv3d.memory:limbs"),
    Rung("tile.march", needs=(*TILE, *ONE_CHANNEL, at_most("KD", MOST_PLANES)), chosen=True,
         idea="a tile marches; a shifted tile is loaded for each tap of a plane, and feeds KD open sums",
         kernel="conv3d.tile.launch:march_on", prepare="conv3d.simt.launch:on_device",
         memory="conv3d.memory:whole"),
    Rung("simt.march", after="simt.constant", needs=(*SIMT, *ONE_CHANNEL, few_taps_per_plane, *SHORT_ROWS),
         chosen=True,
         idea="planes march through shared memory; an element in a register feeds KD open sums of a column",
         kernel="conv3d.simt.launch:march_in_parts", prepare="conv3d.simt.launch:parts_of",
         memory="conv3d.memory:at_launch"),
    Rung("tile.passes", after="tile.march", needs=(*TILE, *ONE_CHANNEL, separable), chosen=True, c=4.0,
         idea="three kernels, each along one axis",
         kernel="conv3d.tile.launch:pass_by_pass", prepare="conv3d.tile.launch:factors_on",
         memory="conv3d.memory:factors"),
    Rung("simt.separable", after="simt.march", needs=(*SIMT, separable, at_most("KD", LONGEST), *SHORT_ROWS),
         chosen=True, c=4.0,
         idea="three short passes over a marching plane, fused",
         kernel="conv3d.simt.launch:convolve_separably", prepare="conv3d.simt.launch:factors_of",
         memory="conv3d.memory:at_launch"),
)
