"""The rungs of conv_transpose2d, for all engines.

A kernel is called as kernel(x, weights, out, epilogue): x (B, H, W, C) and out (B, OH, OW, O) without gaps; NumPy
arrays on the CPU, torch tensors on a GPU. A function that rearranges weights is called with weights (KH, KW, O, C),
both axes and the accuracy class; `Packed.data` is what it returns.
"""

from tilewright.hardware import cpu
from tilewright.ops.conv_transpose2d.problem import OfTiles
from tilewright.ops.conv_transpose2d.tile.forms import (
    LINE,
    PIXELS,
    POSITIONS,
    block_depth,
    line_depth,
    rolling_columns,
)
from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import amx_tiles, engine, hopper, on

CHANNELS = 16  # with this many, the sums of a Winograd tile cost less than the multiplications they save
LIMB_DEPTH = 256  # products of an output from which three products of bfloat16 limbs hold the float32 bound
COLUMNS, FEW = 64, 16  # columns of all phases: the most for one product, and the most for four positions per product
SPLIT = 64  # from this many channels on, blocks of positions are faster if x is given in limbs (H100)
LIMBED = "tile.limbs", "tile.columns_limbs", "tile.boxes_limbs", "tile.specialized_limbs", "tile.blocks_limbs"
ROLLED = 128  # channels with which tile.rolling's weights and some rows of x fit in shared memory
ROUNDED = ("bfloat16", "float16", "tf32")  # accuracy classes that matrix units multiply as they are

# Constants of the bounds. Matrix units truncate where they add; three products of limbs are off by up to 255 eps32 of
# the sum of |products|, since half a unit of bfloat16 is 2**-8, and LIMBS * sqrt(LIMB_DEPTH) is 256.
TRUNCATED, LIMBS = 8.0, 16.0


def all_columns(problem) -> int:
    """Channels of all phases together."""
    return len(problem.rows.phases) * len(problem.columns.phases) * problem.O


def register_block(problem) -> str | None:
    """The channels of all phases fit in one block of registers."""
    columns, most = all_columns(problem), 32 if cpu().lanes == 16 else 16
    return None if columns <= most else f"all phases have {columns} columns, a register block {most}"


def one_vector(problem) -> str | None:
    """The channels of all phases fit in one vector, and those of one phase in half of it."""
    columns, lanes, most = all_columns(problem), cpu().lanes, cpu().lanes // 2
    if most < problem.O:
        return f"O is {problem.O}, it needs {most} at most: vectors of more channels are half full"
    return None if columns <= lanes else f"all phases have {columns} columns, a vector {lanes} lanes"


def tiled(problem) -> str | None:
    """Both axes have windows of 2 or 3, which the Winograd tiles are made for."""
    for name, axis in (("rows", problem.rows), ("columns", problem.columns)):
        if not 2 <= axis.window[1] <= 3:
            return f"{name} have a window of {axis.window[1]}, its tiles are for 2 or 3"
    return None


def channels(problem) -> str | None:
    """There are enough channels for Winograd tiles to be faster."""
    if problem.C < CHANNELS:
        return f"C is {problem.C}, it needs {CHANNELS}"
    if problem.O < CHANNELS and all_columns(problem) > cpu().lanes:
        return f"O is {problem.O}, it needs {CHANNELS}, or all phases' channels in {cpu().lanes} lanes"
    return None


def deep(problem) -> str | None:
    """An output has enough products, counted as in `problem.bound`, for limbs to hold the float32 bound."""
    depth = problem.C
    for axis in (problem.rows, problem.columns):
        depth *= -(-axis.K // axis.stride)
    return None if depth >= LIMB_DEPTH else f"an output has {depth} products, it needs {LIMB_DEPTH}"


def few_columns(most: int):
    """All phases, also those without a tap, have at most `most` channels."""

    def need(problem) -> str | None:
        columns = problem.O * problem.rows.stride * problem.columns.stride
        return None if columns <= most else f"all phases have {columns} columns, it takes up to {most}"

    return need


def many_columns(problem) -> str | None:
    """Refuses up to COLUMNS columns, for which tile.columns_limbs is faster."""
    columns = problem.O * problem.rows.stride * problem.columns.stride
    what = f"all phases together have {columns} columns; up to {COLUMNS}, tile.columns_limbs is faster"
    return None if columns > COLUMNS else what


def many_channels(problem) -> str | None:
    """C is at least SPLIT: for few channels bulk copies save little, and a pass that splits x costs more."""
    return None if problem.C >= SPLIT else f"C is {problem.C}; below {SPLIT} tile.columns_limbs is faster"


def whole_lines(problem) -> str | None:
    """A block of the depth is a LINE of limbs."""
    depth = block_depth(problem.C, problem.dtype)
    return None if depth == LINE // 2 else f"C is {problem.C}, which is {depth} deep; it needs {LINE // 2}"


def copied(problem) -> str | None:
    """Bulk copies take the rows of x; limbs are padded."""
    unit = {"float32": 1, "tf32": 4}.get(problem.dtype, 8)
    return f"C is {problem.C}, it needs a multiple of {unit}" if problem.C % unit else None


def takes_limbs(rung: str, C: int) -> bool:
    """True if x may be limbs: they have no padding, so they must be as deep as the weights."""
    return rung in LIMBED and C % block_depth(C, "float32") == 0


def rolled(problem) -> str | None:
    """Stride 2, a window of up to 3 across, up to 64 columns for a row of x, whole lines of 128 bytes of channels."""
    rows, columns, unit = problem.rows, problem.columns, line_depth(problem.dtype)
    if (rows.stride, columns.stride) != (2, 2) or columns.window[1] > PIXELS - 1:
        window = columns.window[1]
        return f"strides are {rows.stride} and {columns.stride}, the window {window}; it takes 2 and 2, and up to 3"
    if problem.C % unit or problem.C > ROLLED:
        return f"C is {problem.C}, it takes multiples of {unit} up to {ROLLED}"
    wide = rolling_columns(rows.K, problem.O)
    return None if wide <= COLUMNS else f"a row of x has {wide} columns, it takes up to {COLUMNS}"


CPU = (on("cpu", "float32"),)
CPU_BOTH = (on("cpu", "float32", "bfloat16"),)
SIMT = (on("cuda", "float32"), engine("simt"))
TILE = (on("cuda", *ROUNDED), engine("tile"))
TILE_LIMBS = (on("cuda", "float32"), engine("tile"), deep)

# fmt: off
ladder = Ladder(
    "conv_transpose2d",
    Rung("cpu.scatter", needs=CPU,
         idea="every input adds its kernel to the outputs around it",
         kernel="conv_transpose2d.cpu.naive:convolve"),
    Rung("cpu.zero_inserted", after="cpu.scatter", needs=CPU, c=10.0, calls=("matmul",),
         idea="one matmul over x with zeros between its pixels",
         kernel="conv_transpose2d.cpu.zero_inserted:convolve",
         prepare="conv_transpose2d.cpu.zero_inserted:pack_matrix",
         memory="conv_transpose2d.memory:zero_inserted"),
    Rung("cpu.phases", after="cpu.zero_inserted", needs=CPU_BOTH, c=10.0, calls=("matmul", "elementwise"),
         idea="outputs one stride apart are an ordinary convolution: one dense kernel and one matmul each",
         kernel="conv_transpose2d.cpu.phases:convolve", prepare="conv_transpose2d.cpu.phases:pack_phases",
         memory="conv_transpose2d.memory:phases"),
    Rung("cpu.fused", after="cpu.phases", needs=CPU_BOTH,
         idea="one pass over an image for all phases; bias and activation are fused",
         kernel="conv_transpose2d.cpu.taps:convolve_each", prepare="conv_transpose2d.cpu.taps:pack_taps",
         memory="conv_transpose2d.memory:taps"),
    Rung("cpu.images", after="cpu.fused", needs=CPU_BOTH, chosen=True,
         idea="small images share a block of rows, so that weights are read less often; threads take blocks",
         kernel="conv_transpose2d.cpu.taps:convolve", prepare="conv_transpose2d.cpu.taps:pack_taps",
         memory="conv_transpose2d.memory:taps"),
    Rung("cpu.columns", after="cpu.images", needs=(*CPU_BOTH, register_block), chosen=True,
         idea="few channels: those of all phases are the columns of one product over the union of their taps",
         kernel="conv_transpose2d.cpu.taps:convolve", options={"together": True},
         prepare="conv_transpose2d.cpu.taps:pack_columns",
         memory="conv_transpose2d.memory:columns"),
    Rung("cpu.winograd", after="cpu.images", needs=(*CPU_BOTH, tiled, channels), chosen=True, c=OfTiles(1.0),
         idea="tiles of outputs share products: half the multiplications",
         kernel="conv_transpose2d.cpu.winograd:convolve", prepare="conv_transpose2d.cpu.winograd:pack_tiles",
         memory="conv_transpose2d.memory:winograd"),
    Rung("cpu.pixels", after="cpu.columns", needs=(*CPU_BOTH, one_vector), chosen=True,
         idea="few channels: vectors along pixels; each phase multiplies only its own taps",
         kernel="conv_transpose2d.cpu.pixels:convolve", prepare="conv_transpose2d.cpu.pixels:pack_pixels",
         memory="conv_transpose2d.memory:pixels"),
    Rung("cpu.amx", after="cpu.images", needs=(on("cpu", "bfloat16"), amx_tiles), chosen=True,
         idea="AMX tiles whose rows are images: a position's channels form a tile, which serves every tap",
         kernel="conv_transpose2d.cpu.amx:convolve", prepare="conv_transpose2d.cpu.amx:pack_images",
         memory="conv_transpose2d.memory:images"),
    Rung("simt.gather_tested", needs=SIMT,
         idea="one thread per output; a test in its loop finds the inputs that reach it",
         kernel="conv_transpose2d.simt.naive:convolve", options={"kernel": "gather_tested"}),
    Rung("simt.gather", after="simt.gather_tested", needs=SIMT,
         idea="taps one stride apart: no test is left in the loop",
         kernel="conv_transpose2d.simt.naive:convolve", options={"kernel": "gather"}),
    Rung("simt.coalesced", after="simt.gather", needs=SIMT,
         idea="weights transposed: the threads of a warp read adjacent elements",
         kernel="conv_transpose2d.simt.naive:convolve", options={"kernel": "coalesced"},
         prepare="conv_transpose2d.simt.naive:transpose",
         memory="conv_transpose2d.memory:transposed"),
    Rung("simt.zero_inserted", after="simt.coalesced", needs=SIMT, c=4.0, calls=("matmul",),
         idea="one matmul over x with zeros between its pixels",
         kernel="conv_transpose2d.simt.matrices:zero_inserted", prepare="conv_transpose2d.simt.matrices:pack_matrix",
         memory="conv_transpose2d.memory:gpu_matrix"),
    Rung("simt.phases", after="simt.zero_inserted", needs=SIMT, chosen=True, c=4.0, calls=("matmul",),
         idea="outputs one stride apart are an ordinary convolution: one matmul per phase",
         kernel="conv_transpose2d.simt.matrices:phases", prepare="conv_transpose2d.simt.matrices:pack_phases",
         memory="conv_transpose2d.memory:gpu_matrices"),
    Rung("tile.phases", needs=TILE, chosen=True, c=TRUNCATED,
         idea="matrix units: all phases in one launch, rows of positions by one load per tap",
         kernel="conv_transpose2d.tile.launch:convolve", prepare="conv_transpose2d.tile.weights:pack_phases",
         memory="conv_transpose2d.memory:tile_phases"),
    Rung("tile.columns", after="tile.phases", needs=(*TILE, few_columns(COLUMNS)), chosen=True, c=TRUNCATED,
         idea="few channels: those of all phases are the columns of one product",
         kernel="conv_transpose2d.tile.launch:convolve", prepare="conv_transpose2d.tile.weights:pack_columns",
         memory="conv_transpose2d.memory:tile_columns"),
    Rung("tile.boxes", after="tile.phases", needs=(*TILE, copied), chosen=True, c=TRUNCATED,
         idea="bulk copies of boxes of positions; narrow phases side by side are one product",
         kernel="conv_transpose2d.tile.launch:convolve", prepare="conv_transpose2d.tile.weights:pack_boxes",
         memory="conv_transpose2d.memory:tile_boxes"),
    Rung("tile.blocks", after="tile.columns", needs=(*TILE, copied, few_columns(FEW)), chosen=True, c=TRUNCATED,
         idea="bulk copies; the columns belong to 2 x 2 positions at once",
         kernel="conv_transpose2d.tile.launch:convolve", prepare="conv_transpose2d.tile.weights:pack_blocks",
         memory="conv_transpose2d.memory:tile_blocks"),
    Rung("tile.rolling", after="tile.blocks", needs=(*TILE, hopper, few_columns(FEW), rolled), chosen=True, c=TRUNCATED,
         idea="each row of x is multiplied once; unfinished rows of outputs stay in registers",
         kernel="conv_transpose2d.tile.launch:convolve", prepare="conv_transpose2d.tile.weights:pack_rolling",
         memory="conv_transpose2d.memory:tile_rolling"),
    Rung("tile.limbs", after="tile.phases", needs=TILE_LIMBS, chosen=True, c=LIMBS,
         idea="two bfloat16 limbs: matrix units: all phases in one launch, rows of positions by one load per tap",
         kernel="conv_transpose2d.tile.launch:convolve", prepare="conv_transpose2d.tile.weights:pack_phases",
         memory="conv_transpose2d.memory:tile_phases"),
    Rung("tile.columns_limbs", after="tile.limbs", needs=(*TILE_LIMBS, few_columns(COLUMNS)), chosen=True, c=LIMBS,
         idea="two bfloat16 limbs: few channels: those of all phases are the columns of one product",
         kernel="conv_transpose2d.tile.launch:convolve", options={"positions": POSITIONS, "depth": LINE // 2},
         swept={"positions": (32, 64, 128), "depth": (32, 64)}, prepare="conv_transpose2d.tile.weights:pack_columns",
         memory="conv_transpose2d.memory:tile_columns"),
    Rung("tile.boxes_limbs", after="tile.limbs", needs=(*TILE_LIMBS, copied), slow=(many_columns,), chosen=True,
         c=LIMBS,
         idea="two bfloat16 limbs: bulk copies of boxes of positions; narrow phases side by side are one product",
         kernel="conv_transpose2d.tile.launch:convolve", prepare="conv_transpose2d.tile.weights:pack_boxes",
         memory="conv_transpose2d.memory:tile_boxes"),
    Rung("tile.specialized_limbs", after="tile.boxes_limbs", needs=(*TILE_LIMBS, copied, whole_lines, hopper),
         slow=(many_columns,), chosen=True, c=LIMBS,
         idea="two warps copy boxes of limbs in, two warpgroups multiply; a tap of one phase takes its columns only",
         kernel="conv_transpose2d.tile.launch:convolve", options={"specialized": True},
         prepare="conv_transpose2d.tile.weights:pack_boxes",
         memory="conv_transpose2d.memory:tile_boxes"),
    Rung("tile.blocks_limbs", after="tile.columns_limbs", needs=(*TILE_LIMBS, copied, few_columns(FEW)),
         slow=(many_channels,), chosen=True, c=LIMBS,
         idea="two bfloat16 limbs: bulk copies; the columns belong to 2 x 2 positions at once",
         kernel="conv_transpose2d.tile.launch:convolve", prepare="conv_transpose2d.tile.weights:pack_blocks",
         memory="conv_transpose2d.memory:tile_blocks"),
    Rung("tile.rolling_limbs", after="tile.blocks_limbs", needs=(*TILE_LIMBS, hopper, few_columns(FEW), rolled),
         chosen=True, c=LIMBS,
         idea="two bfloat16 limbs: each row of x is multiplied once; unfinished rows of outputs stay in registers",
         kernel="conv_transpose2d.tile.launch:convolve", prepare="conv_transpose2d.tile.weights:pack_rolling",
         memory="conv_transpose2d.memory:tile_rolling"),
)
