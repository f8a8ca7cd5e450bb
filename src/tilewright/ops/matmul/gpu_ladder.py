"""matmul's rungs on a GPU: SIMT kernels in numba-cuda (`simt/`), tile kernels in Triton and Gluon (`tile/`).

run(rows, weights, out, epilogue) as on the CPU, with torch tensors in them.
"""

from functools import partial

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import at_least, at_most, engine, hopper, on

PREFER = (
    *("simt.narrow", "tile.specialized_limbs", "tile.limbs", "simt.buffered"),
    *("tile.specialized", "tile.persistent"),
)
LIMB_DEPTH = 192  # K from which four products of bfloat16 limbs are taken: they hold the float32 bound from 164 on
NARROW = 16  # columns whose sums of four rows a thread holds in registers
COLUMNS = 65535 * 8  # of blocks side by side there are at most 65,535, and the smallest has 8 columns

# name, the rung it stands on, what changes
SIMT = (
    ("memory", None, "a thread an element of out; its sum is kept in device memory"),
    ("register", "memory", "the sum stays in a register until it is whole"),
    ("coalesced", "register", "a warp's threads lie along a row of out, and read adjacent numbers"),
    ("shared8", "coalesced", "a block keeps one 8 x 8 tile of either operand in shared memory"),
    ("shared16", "shared8", "tiles of 16 x 16"),
    ("shared32", "shared16", "tiles of 32 x 32"),
    ("unrolled", "shared32", "the inner loop is unrolled"),
    ("strip", "unrolled", "a thread has 8 elements of a column: a number of b serves them from a register"),
    ("outer", "strip", "a thread has 8 x 8 elements, sums of outer products; a's tile is transposed"),
    ("vectors", "outer", "16 bytes a load, from padded operands; 8 x 16 elements a thread"),
    ("warps", "vectors", "a warp has 64 x 64 of the tile: its loads meet in no bank of shared memory"),
    ("buffered", "warps", "the next tiles are loaded while these are multiplied"),
)

ROUNDED = ("bfloat16", "float16", "tf32")  # accuracy classes that matrix units multiply as they are
DEEP = at_least("K", LIMB_DEPTH)
LIMBS = 10.0  # constant of their bound: three products are off by up to 255 eps32 |a| |b|, four by 128

# name, the rung it stands on, accuracy classes, what else it needs, constant of its bound, what changes. Matrix units
# truncate where they add: on an H200 sums of one sign were off by 1.7 units of the bound at K = 1,024 and by 6.5 at
# 16,384; limbs leave them after 64 numbers, and were off by 0.2.
TILE = (
    ("persistent", None, ROUNDED, (), 8.0, "matrix units; a program a multiprocessor takes tile after tile"),
    ("specialized", "persistent", ROUNDED, (hopper,), 8.0, "one warp copies tiles in, two warpgroups multiply them"),
    (
        "limbs",
        None,
        ("float32",),
        (DEEP,),
        LIMBS,
        "float32 as two bfloat16 limbs, three or four products of them on matrix units",
    ),
    (
        "specialized_limbs",
        "limbs",
        ("float32",),
        (DEEP, hopper),
        LIMBS,
        "one warp copies limbs in, two warpgroups multiply",
    ),
)


def declare(ladder: Ladder) -> None:
    """Add the rungs; nothing is imported before one of them runs."""
    needs = (on("cuda", "float32"), at_most("N", COLUMNS), engine("simt"))
    for name, after, idea in SIMT:
        prepare = _pad_tiles if name in ("vectors", "warps", "buffered") else None
        below = None if after is None else f"simt.{after}"
        ladder.rung(f"simt.{name}", after=below, needs=needs, idea=idea, prepare=prepare)(partial(_simt, name))
    narrow = (*needs, at_least("N", 1), at_most("N", NARROW))
    idea = "for few columns: a warp has four rows, its threads share K and add their sums by shuffles"
    ladder.rung("simt.narrow", after="simt.coalesced", needs=narrow, idea=idea, prepare=_transpose_narrow)(_narrow)
    for name, after, dtypes, more, c, idea in TILE:
        needs = (on("cuda", *dtypes), engine("tile"), *more)
        prepare = _transpose_limbs if "limbs" in name else _transpose
        below = None if after is None else f"tile.{after}"
        ladder.rung(f"tile.{name}", after=below, needs=needs, idea=idea, prepare=prepare, c=c)(_tile)


def _simt(name: str, rows, weights, out, epilogue) -> None:
    from tilewright.ops.matmul.simt.launch import multiply

    multiply(name, rows, weights, out, epilogue)


def _pad_tiles(b, rung: str, dtype: str):
    from tilewright.ops.matmul.simt.launch import pad_tiles

    return pad_tiles(b, rung)


def _narrow(rows, weights, out, epilogue) -> None:
    from tilewright.ops.matmul.simt.launch import multiply_narrow

    multiply_narrow(rows, weights, out, epilogue)


def _transpose_narrow(b, rung: str, dtype: str):
    from tilewright.ops.matmul.simt.launch import transpose

    return transpose(b, rung)


def _tile(rows, weights, out, epilogue) -> None:
    from tilewright.ops.gemm.tile.launch import multiply

    multiply(rows, weights, out, epilogue)


def _transpose(b, rung: str, dtype: str):
    from tilewright.ops.gemm.tile.launch import transpose

    return transpose(b, rung, dtype)


def _transpose_limbs(b, rung: str, dtype: str):
    from tilewright.ops.gemm.tile.launch import transpose_limbs

    return transpose_limbs(b, rung)
