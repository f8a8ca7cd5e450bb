"""The rungs of conv_transpose2d: each is declared once, here; the kernels are in `cpu/`, where rungs that
differ little share a file.

Every rung's run(x, weights, out, epilogue) computes out (B, OH, OW, O) from x (B, H, W, C) without gaps.
Kernels are imported when a rung first runs, so that listing the ladder costs nothing.
"""

from tilewright.hardware import cpu
from tilewright.ops.conv_transpose2d import gpu_ladder
from tilewright.ops.conv_transpose2d.problem import OfTiles
from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.launch import threads
from tilewright.ops.core.needs import amx_tiles, on

CHANNELS = 16  # from which the tiles' sums cost less than the multiplications they save

ladder = Ladder(
    "conv_transpose2d",
    prefer=("cpu.amx", "cpu.pixels", "cpu.winograd", "cpu.columns", "cpu.threads", *gpu_ladder.PREFER),
)
float32, either, bfloat16 = on("cpu", "float32"), on("cpu", "float32", "bfloat16"), on("cpu", "bfloat16")


def _all_columns(problem) -> int:
    return len(problem.rows.phases) * len(problem.columns.phases) * problem.O


def _few_columns(problem) -> str | None:
    columns, most = _all_columns(problem), 32 if cpu().lanes == 16 else 16
    return None if columns <= most else f"all phases have {columns} columns, a register block {most}"


def _one_vector(problem) -> str | None:
    columns, lanes, most = _all_columns(problem), cpu().lanes, cpu().lanes // 2
    if most < problem.O:
        return f"O is {problem.O}, it needs {most} at most: vectors of more channels are half full"
    return None if columns <= lanes else f"all phases have {columns} columns, a vector {lanes} lanes"


def _tiled(problem) -> str | None:
    for name, axis in (("rows", problem.rows), ("columns", problem.columns)):
        if not 2 <= axis.window[1] <= 3:
            return f"{name} have a window of {axis.window[1]}, its tiles are for 2 or 3"
    return None


def _channels(problem) -> str | None:
    if problem.C < CHANNELS:
        return f"C is {problem.C}, it needs {CHANNELS}"
    if problem.O < CHANNELS and _all_columns(problem) > cpu().lanes:
        return f"O is {problem.O}, it needs {CHANNELS}, or all phases' channels in {cpu().lanes} lanes"
    return None


@ladder.rung("cpu.scatter", after=None, needs=(float32,), idea="every input adds its kernel to the outputs around it")
def scatter(x, weights, out, epilogue):
    from tilewright.ops.conv_transpose2d.cpu.naive import convolve

    convolve("scatter", x, weights, out, epilogue)


@ladder.rung(
    "cpu.gather_tested",
    after="cpu.scatter",
    needs=(float32,),
    idea="every output sums the inputs that reach it; a test in the loop finds them",
)
def gather_tested(x, weights, out, epilogue):
    from tilewright.ops.conv_transpose2d.cpu.naive import convolve

    convolve("gather_tested", x, weights, out, epilogue)


@ladder.rung(
    "cpu.gather", after="cpu.gather_tested", needs=(float32,), idea="taps a stride apart: no test is left in the loop"
)
def gather(x, weights, out, epilogue):
    from tilewright.ops.conv_transpose2d.cpu.naive import convolve

    convolve("gather", x, weights, out, epilogue)


def _pack_matrix(weights, rows, columns, rung, dtype):
    from tilewright.ops.conv_transpose2d.cpu.zero_inserted import pack_matrix

    return pack_matrix(weights, rows, columns, rung, dtype)


@ladder.rung(
    "cpu.zero_inserted",
    after="cpu.gather",
    needs=(float32,),
    prepare=_pack_matrix,
    c=10.0,
    idea="one matmul over x with zeros between its pixels",
)
def zero_inserted(x, weights, out, epilogue):
    from tilewright.ops.conv_transpose2d.cpu.zero_inserted import convolve

    convolve(x, weights, out, epilogue)


def _pack_phases(weights, rows, columns, rung, dtype):
    from tilewright.ops.conv_transpose2d.cpu.phases import pack_phases

    return pack_phases(weights, rows, columns, rung, dtype)


@ladder.rung(
    "cpu.phases",
    after="cpu.zero_inserted",
    needs=(either,),
    prepare=_pack_phases,
    c=10.0,
    idea="outputs a stride apart are an ordinary convolution: a dense kernel and a matmul each",
)
def phases(x, weights, out, epilogue):
    from tilewright.ops.conv_transpose2d.cpu.phases import convolve

    convolve(x, weights, out, epilogue)


def _pack_taps(weights, rows, columns, rung, dtype):
    from tilewright.ops.conv_transpose2d.cpu.taps import pack_taps

    return pack_taps(weights, rows, columns, rung, dtype, together=rung == "cpu.columns")


@ladder.rung(
    "cpu.fused",
    after="cpu.phases",
    needs=(either,),
    prepare=_pack_taps,
    idea="one pass over an image for all phases, bias and activation as the sums leave",
)
def fused(x, weights, out, epilogue):
    from tilewright.ops.conv_transpose2d.cpu.taps import convolve_alone

    with threads(1):
        convolve_alone(x, weights, out, epilogue)


@ladder.rung(
    "cpu.images",
    after="cpu.fused",
    needs=(either,),
    prepare=_pack_taps,
    idea="small images share a block of rows, so that weights pass less often",
)
def images(x, weights, out, epilogue):
    with threads(1):
        all_threads(x, weights, out, epilogue)


@ladder.rung("cpu.threads", after="cpu.images", needs=(either,), prepare=_pack_taps, idea="threads draw blocks of rows")
def all_threads(x, weights, out, epilogue):
    from tilewright.ops.conv_transpose2d.cpu.taps import convolve

    convolve(x, weights, out, epilogue)


@ladder.rung(
    "cpu.columns",
    after="cpu.threads",
    needs=(either, _few_columns),
    prepare=_pack_taps,
    idea="few channels: those of all phases are the columns of one product over the union of their taps",
)
def columns(x, weights, out, epilogue):
    from tilewright.ops.conv_transpose2d.cpu.taps import convolve

    convolve(x, weights, out, epilogue, together=True)


def _pack_pixels(weights, rows, columns, rung, dtype):
    from tilewright.ops.conv_transpose2d.cpu.pixels import pack_pixels

    return pack_pixels(weights, rows, columns, rung, dtype)


@ladder.rung(
    "cpu.pixels",
    after="cpu.columns",
    needs=(either, _one_vector),
    prepare=_pack_pixels,
    idea="few channels: vectors along pixels, and no tap that a phase has not",
)
def pixels(x, weights, out, epilogue):
    from tilewright.ops.conv_transpose2d.cpu.pixels import convolve

    convolve(x, weights, out, epilogue)


def _pack_tiles(weights, rows, columns, rung, dtype):
    from tilewright.ops.conv_transpose2d.cpu.winograd import pack_tiles

    return pack_tiles(weights, rows, columns, rung, dtype)


@ladder.rung(
    "cpu.winograd",
    after="cpu.threads",
    needs=(either, _tiled, _channels),
    prepare=_pack_tiles,
    c=OfTiles(1.0),
    idea="tiles of outputs share products: half the multiplications",
)
def winograd(x, weights, out, epilogue):
    from tilewright.ops.conv_transpose2d.cpu.winograd import convolve

    convolve(x, weights, out, epilogue)


def _pack_images(weights, rows, columns, rung, dtype):
    from tilewright.ops.conv_transpose2d.cpu.amx import pack_images

    return pack_images(weights, rows, columns, rung, dtype)


@ladder.rung(
    "cpu.amx",
    after="cpu.threads",
    needs=(bfloat16, amx_tiles),
    prepare=_pack_images,
    idea="AMX tiles whose rows are images: a position's channels are a tile as they are, for every tap",
)
def amx(x, weights, out, epilogue):
    from tilewright.ops.conv_transpose2d.cpu.amx import convolve

    convolve(x, weights, out, epilogue)


gpu_ladder.declare(ladder)
