"""conv3d's rungs on a GPU: SIMT kernels in numba-cuda (`simt/`), tile kernels in Triton (`tile/`).

Every rung's run(x, weights, out, window) computes out (O, D, H, W) of x (C, D, H, W), torch tensors in float32.
"""

from functools import partial

from tilewright.ops.conv3d.simt.limits import MOST_PLANES, MOST_TAPS, halo_bytes
from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import at_least, at_most, engine, on

PREFER = (
    *("simt.separable", "tile.passes", "simt.march", "tile.march"),
    *("tile.taps_limbs", "tile.channels", "simt.shared", "simt.naive"),
)
LONGEST = 33  # taps along an axis: more, and a plane with its halo does not fit in shared memory
SHARED = 48 << 10  # bytes of shared memory that a block has unless it asks for more
LIMB_DEPTH, LIMBS_C = 256, 16.0  # they are off by up to 255 eps32 of the sum of |products|: LIMBS_C * 256**0.5
FEWEST = 8  # channels for which a tile of 16 is worth it


def separable(problem) -> str | None:
    """The kernel is an outer product of three vectors."""
    return None if problem.separable else "the kernel is no outer product of three vectors"


def _few(taps: int, what: str) -> str | None:
    return None if taps <= MOST_TAPS else f"{what} has {taps} taps, it takes up to {MOST_TAPS}"


def _few_taps(problem) -> str | None:
    """The weights may all be written out."""
    return _few(problem.KD * problem.KH * problem.KW, "the kernel")


def _few_taps_a_plane(problem) -> str | None:
    """Those of a plane may all be written out."""
    return _few(problem.KH * problem.KW, "a plane of the kernel")


def _fits(problem) -> str | None:
    """A tile with its halo fits in shared memory."""
    nbytes = halo_bytes((problem.KD, problem.KH, problem.KW))
    return None if nbytes <= SHARED else f"a tile with its halo takes {nbytes:,} bytes of shared memory"


def _deep(problem) -> str | None:
    """The sums are so long that three products of bfloat16 limbs hold the float32 bound."""
    depth = problem.C * problem.KD * problem.KH * problem.KW
    return None if depth >= LIMB_DEPTH else f"an output has {depth} products, it needs {LIMB_DEPTH}"


GPU = on("cuda", "float32")
ALONE = at_most("O", 1), at_most("C", 1)
SHORT = tuple(at_most(axis, LONGEST) for axis in ("KD", "KH", "KW"))

# name, the rung it stands on, what else it needs, constant of its bound, what changes
SIMT = (
    ("naive", None, (), 1.0, "a thread an output; numbers and weights from device memory"),
    ("shared", "naive", (_fits,), 1.0, "a block's tile with its halo in shared memory"),
    ("constant", "shared", (*ALONE, _fits, _few_taps), 1.0, "weights in constant memory, the loops over taps unrolled"),
    (
        "march",
        "constant",
        (*ALONE, _few_taps_a_plane, *SHORT[1:]),
        1.0,
        "planes march through shared memory; a number in a register feeds KD open sums of a column",
    ),
    ("separable", "march", (separable, *SHORT), 4.0, "three short passes over a marching plane, fused"),
)
MARCH = "a tile marches; a shifted tile is loaded for each tap of a plane, and feeds KD open sums"
PASSES = "three kernels, each along one axis"
TAPS = "a product a tap on matrix units, in float32 as two bfloat16 limbs, three products of them"
CHANNELS = "one matrix product over channels and taps, of numbers that are fetched as they are needed"


def declare(ladder: Ladder) -> None:
    """Add the rungs; nothing is imported before one of them runs."""
    for name, after, more, c, idea in SIMT:
        needs, below = (GPU, engine("simt"), *more), None if after is None else f"simt.{after}"
        ladder.rung(f"simt.{name}", after=below, needs=needs, idea=idea, prepare=partial(_laid_out, name), c=c)(
            partial(_simt, name)
        )
    needs, prepare = (GPU, engine("tile"), *ALONE), partial(_laid_out, "tile")
    few = at_most("KD", MOST_PLANES)
    ladder.rung("tile.march", after=None, needs=(*needs, few), idea=MARCH, prepare=prepare)(_march)
    needs = (*needs, separable)
    ladder.rung("tile.passes", after="tile.march", needs=needs, idea=PASSES, prepare=_factors, c=4.0)(_pass_by_pass)
    needs = (GPU, engine("tile"))
    ladder.rung("tile.channels", after=None, needs=needs, idea=CHANNELS, prepare=_columns)(_with_channels)
    needs = (*needs, at_least("C", FEWEST), _deep)
    ladder.rung("tile.taps_limbs", after="tile.channels", needs=needs, idea=TAPS, prepare=_limbs, c=LIMBS_C)(_by_taps)


def _simt(name: str, x, weights, out, window) -> None:
    from tilewright.ops.conv3d.simt.launch import convolve

    convolve(name, x, weights, out, window)


def _march(x, weights, out, window) -> None:
    from tilewright.ops.conv3d.tile.launch import march_on

    march_on(x, weights, out, window)


def _pass_by_pass(x, weights, out, window) -> None:
    from tilewright.ops.conv3d.tile.launch import pass_by_pass

    pass_by_pass(x, weights, out, window)


def _with_channels(x, weights, out, window) -> None:
    from tilewright.ops.conv3d.tile.launch import with_channels

    with_channels(x, weights, out, window)


def _by_taps(x, weights, out, window) -> None:
    from tilewright.ops.conv3d.tile.launch import tap_by_tap

    tap_by_tap(x, weights, out, window)


def _limbs(weights, device):
    from tilewright.ops.conv3d.tile.launch import lay_out_limbs

    return lay_out_limbs(weights, device)


def _columns(weights, device) -> list:
    from tilewright.ops.conv3d.tile.launch import lay_out

    return lay_out(weights, device)


def _factors(weights, device) -> list:
    """The three vectors as tensors on the device."""
    import torch

    return [torch.from_numpy(factor).to(device) for factor in weights.factors]


def _laid_out(name: str, weights, device):
    """Weights for a rung: a tensor on the device, or numbers to be handed over at each launch."""
    if name == "constant":
        return tuple(weights.weights.ravel())
    if name in ("march", "separable"):
        from tilewright.ops.conv3d.simt.launch import factors_of, parts_of

        return parts_of(weights) if name == "march" else factors_of(weights)
    import torch

    return torch.from_numpy(weights.weights).to(device)
